"""Unit 'phrase': the list, the algebra of masking, and one phrase in n_s shards."""

import pickle
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_shards import finished, string_table

from rayprivacy.core.errors import ConfigError, ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout, prepare
from rayprivacy.corpus.manifest import ShardManifest, write_part
from rayprivacy.corpus.phrases import MASK, PhraseFile, Phrases, cut_between_words, load_phrases, tidy, words_of
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.users import Dropped, clean
from rayprivacy.corpus.verify import _line, shards_per_phrase, verify_shards

KEY, PHRASE = Key.for_tests(), PrivacyUnit.PHRASE
MOST, SHARDS = 2, 6
OWN = {"labels": ("topic",), "max_records_per_user": 2, "holdout": 0.2}
LAYOUT = Layout(CorpusConfig(**OWN, max_chars=16, phrases="-", max_shards_per_phrase=MOST), SHARDS, 2, PHRASE)
LIST = Phrases.of(["Ann Lee", "york", "new car", "élan é vital"])

WORDS = ["ann", "LEE", "Ann", "lee", "york", "YORKER", "new", "car", "masked", "élan", "e\u0301lan", "É", "vital", "x"]
GAPS = [" ", ", ", "-", "\n", "[", "] ", " \u200b", "."]
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), min_size=1, max_size=8).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
) | st.sampled_from(["", " ", "york", MASK, "x york", f"x {MASK}", "\u0301york", "york\u0301", "ann lee" * 9])
NUMBERS = range(len(LIST.words))
ROWS = st.lists(
    st.tuples(st.sampled_from([f"u{n}" for n in range(9)]), TEXTS, st.sampled_from(["x", None])), max_size=30
)


def masked(text, *numbers, phrases=LIST):
    return phrases.mask(unicodedata.normalize("NFC", text), lambda number: number in numbers)


def parts_of(rows, blocks=1, step=tidy, phrases=LIST):
    tidied = [step(string_table(rows[start::blocks]), KEY, LAYOUT, phrases)[0] for start in range(blocks)]
    return finished(pa.concat_tables([prepare(block, KEY, LAYOUT)[0] for block in tidied]), KEY, LAYOUT)


def shards_of(rows, blocks=1, step=tidy):
    every = [row for part, table in parts_of(rows, blocks, step).items() if part >= 0 for row in table.to_pylist()]
    return [[row for row in every if row["shard"] == shard] for shard in range(SHARDS)]


def without(rows, number):
    return [(user, masked(text, number), topic) for user, text, topic in rows]


@given(ROWS, st.sampled_from(NUMBERS), st.integers(1, 3))
@example(rows=[(f"u{n}", "Ann-Lee says x new x", None) for n in range(40)], number=0, blocks=1)  # the cut
@example(rows=[(f"u{n}", text, None) for n in range(40) for text in ("york", MASK, "x")], number=1, blocks=2)  # repeats
@example(rows=[(f"u{n}", f"york {m}", None) for n in range(40) for m in range(5)], number=1, blocks=3)  # the bound
@example(rows=[(f"u{n}", "yorkyorkyork yorker", None) for n in range(40)], number=1, blocks=1)  # a word cut in two
@example(rows=[(f"u{n}", "new york car", None) for n in range(40)], number=1, blocks=1)  # neighbours join
def test_one_phrase_changes_the_shards_it_may_stay_in_and_no_others(rows, number, blocks):
    before, after = shards_of(rows, blocks), shards_of(without(rows, number))
    changed = {shard for shard in range(SHARDS) if before[shard] != after[shard]}
    assert changed <= LIST.allowed(number, KEY, MOST, SHARDS)


def cut_first(block, key, layout, phrases):
    return tidy(clean(block, layout.config.max_chars)[0], key, layout, phrases)


def duplicates_first(block, key, layout, phrases):
    kept = prepare(clean(block, None)[0], key, Layout(CorpusConfig(**OWN), SHARDS, 2))[0].select(
        ["user", "text", "topic"]
    )
    return tidy(kept, key, layout, phrases)


@pytest.mark.parametrize("step", [tidy, cut_first, duplicates_first])
def test_the_bound_is_reached_and_a_wrong_order_of_steps_passes_it(step):
    rows = [(f"u{n}", f"york {text}", None) for n in range(60) for text in ("a", "b", "c and then d")]
    before, after = shards_of(rows, step=step), shards_of(without(rows, 1), step=step)
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    assert changed == MOST if step is tidy else changed > MOST


@given(TEXTS, st.sets(st.sampled_from(NUMBERS)), st.sampled_from(NUMBERS))
def test_masking_in_two_steps_is_masking_at_once(text, some, number):
    once = masked(text, *some, number)
    assert masked(masked(text, number), *some) == masked(masked(text, *some), number) == once
    assert not any(found in {number, *some} for found, _, _ in LIST.find(once))


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(" ".join), min_size=1, max_size=4))
def test_a_list_that_passes_has_disjoint_occurrences_and_others_overlap(lines):
    def spots(words):
        return [(at, at + len(words)) for at in range(len(text)) if tuple(text[at : at + len(words)]) == words]

    phrases = [tuple(line.split()) for line in lines]
    clash = len(set(phrases)) < len(phrases)
    for one in phrases:  # text that holds two phrases as close as they can be
        for other in phrases:
            for shared in range(1, min(len(one), len(other)) + 1):
                text = [*one, *other[shared:]]
                spans = {*spots(one), *spots(other)} if one[len(one) - shared :] == other[:shared] else set()
                clash |= any(a < b and b[0] < a[1] for a in spans for b in spans)
            text = list(one)
            clash |= one != other and bool(spots(other))
    if clash:
        with pytest.raises(ConfigError, match=r"line \d+ (repeats|contains|ends as) .*line \d"):
            Phrases.of(lines)
    else:
        assert len(Phrases.of(lines).words) == len(lines)


OCCURRENCES = {"Tell ANN LEE.": f"Tell {MASK}.", "ann,\n lee": MASK, "ann lee ann lee": f"{MASK} {MASK}"}
OCCURRENCES |= {"York's yorks": f"{MASK}'s yorks", "E\u0301lan É vital": MASK, "new york car": f"new {MASK} car"}
OCCURRENCES |= {"yo\u0301rk york\u0308": "yórk york\u0308"}
OCCURRENCES |= {text: text for text in ("Annlee, xann lee, ann leex", "new_car")}


@pytest.mark.parametrize("text", OCCURRENCES)
def test_occurrences_are_runs_of_whole_words(text):
    assert masked(text, *NUMBERS) == OCCURRENCES[text]


@given(TEXTS)
def test_two_ways_to_find_phrases_agree(text):
    found = {number for number, _, _ in LIST.find(unicodedata.normalize("NFC", text))}
    assert found == {n for n in NUMBERS if f" {' '.join(LIST.words[n])} " in _line(text)}


@given(st.text(alphabet="ab \u0301-", max_size=20), st.integers(1, 12))
def test_a_cut_makes_no_new_word(text, most):
    cut = cut_between_words(text, most)
    assert len(cut) <= most
    assert words_of(cut) == words_of(text)[: len(words_of(cut))]


def test_which_shards_may_hold_a_phrase_is_a_keyed_choice_of_its_own():
    names = [f"name {n}" for n in range(900)]
    phrases, alone = Phrases.of(names), Phrases.of(names[7:8])
    choices = [phrases.allowed(number, KEY, 3, 10) for number in range(900)]
    assert {len(choice) for choice in choices} == {3}
    counts = [sum(shard in choice for choice in choices) for shard in range(10)]
    assert sum((count - 270) ** 2 / 270 for count in counts) < 30
    assert alone.allowed(0, KEY, 3, 10) == choices[7]
    assert alone.allowed(0, KEY, 2, 10) < choices[7]
    assert alone.allowed(0, KEY, 10, 10) == frozenset(range(10))
    assert [phrases.allowed(n, Key(b"k" * 32), 3, 10) for n in range(900)] != choices


REFUSED = {
    "line 1 ends as line 3 begins": ["secretone two", "x", "two secretthree"],
    "line 1 ends as line 1 begins": ["secret two secret"],
    "line 2 repeats line 1": ["secret"] * 2,
    "line 1 contains line 3": ["a secret b", "", "SECRET"],
    "line 2 has 0 words": ["x", "?!"],
    "line 1 has 65 words": ["secret " * 65],
    "line 1 has the word that masks": ["secret Masked"],
    "a file without phrases": ["", "  "],
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_list_is_refused_by_line_numbers_alone(says):
    with pytest.raises(ConfigError, match=says) as caught:
        Phrases.of(REFUSED[says])
    assert "secret" not in str(caught.value).lower()


def test_a_list_is_read_once_watched_and_neither_prints_nor_pickles(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\ufeffsecret one\r\n\nsecrettwo\n", "utf-8")
    file = PhraseFile.of(str(path), KEY)
    phrases = load_phrases(str(path))
    assert file.load(KEY) == phrases == Phrases.of(["Secret  ONE", "secrettwo"])
    assert Phrases.of(["secrettwo", "secret one"]).digest(KEY) == file.digest
    assert Phrases.of(["secrettwo"]).digest(KEY) != file.digest != phrases.digest(Key(b"k" * 32))
    assert repr(phrases) == "Phrases(<sealed>)"
    assert "secret" not in repr(PhraseFile(path=None, digest=file.digest))
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(phrases)
    path.write_text("secret three")
    with pytest.raises(ShardError, match="changed during the run"):
        file.load(KEY)
    path.write_bytes(b"secret \xff")
    for wrong in (path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"corpus\.phrases is .*cannot be read") as caught:
            load_phrases(str(wrong))
        assert "secret" not in str(caught.value)
        assert caught.value.__context__ is None


def test_verify_finds_a_phrase_that_was_left(tmp_path):
    def written(phrases):
        parts = parts_of([(f"u{n}", "say York, x", None) for n in range(60)], phrases=phrases)
        files = {part: write_part(rows, part, KEY, tmp_path, PHRASE) for part, rows in parts.items()}
        entries = tuple(files[part] for part in range(LAYOUT.parts))
        manifest = ShardManifest("", SHARDS, 2, 2, 0.2, entries, files[HOLDOUT], Dropped(), PHRASE, MOST)
        manifest.write(tmp_path)
        return manifest

    manifest = written(LIST)
    verify_shards(tmp_path, KEY, PHRASE, LIST)
    assert shards_per_phrase(tmp_path, manifest, LIST) == {0: 0, 1: MOST, 2: 0, 3: 0}
    written(Phrases.of(["another"]))
    with pytest.raises(ShardError, match="holds a secret phrase in a shard where it must be masked") as caught:
        verify_shards(tmp_path, KEY, PHRASE, LIST)
    assert "york" not in str(caught.value).lower()
    for unit, phrases in ((PHRASE, None), (PrivacyUnit.USER, None), (PrivacyUnit.RECORD, LIST)):
        with pytest.raises(ShardError, match="of unit 'phrase', not"):
            verify_shards(tmp_path, KEY, unit, phrases)


def test_counts_of_what_was_set_aside_and_what_is_left_alone():
    rows = [("u1", "yorkyorkyorkyorkyork", None), ("u1", "x " * 20, None), ("u1", " ", None), (" ", "x", None)]
    table, dropped = tidy(string_table(rows), KEY, LAYOUT, LIST)
    assert table["text"].to_pylist() == ["x x x x x x x x"]
    assert dropped == Dropped(null_user=1, empty_text=2, cut_text=1)
    held = next(f"h{n}" for n in range(99) if LAYOUT.shard_of(KEY, f"h{n}") == HOLDOUT)
    assert tidy(string_table([(held, "ann lee", None)]), KEY, LAYOUT, LIST)[0]["text"].to_pylist() == ["ann lee"]
    for layout, phrases in ((Layout(CorpusConfig(), SHARDS, 2), LIST), (LAYOUT, None)):
        with pytest.raises(ShardError, match="pass both or none"):
            tidy(string_table(rows), KEY, layout, phrases)
