"""Policies hide whole words, however they are spelled, and no others, by the row alone, and leave a mark for a run."""

import pickle
import random
import re
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.policies import settings
from rayprivacy.policies.classifier import ClassifierPolicy, train_scores
from rayprivacy.policies.policy import MARK
from rayprivacy.policies.settings import PolicyConfig, make_policy
from rayprivacy.policies.words import KeywordPolicy, PatternPolicy, SlotPolicy
from rayprivacy.sanitize.entities import PatternDetector
from rayprivacy.sanitize.settings import KINDS

KEPT = ("USR:",)
PUBLIC = [
    ("please book a seat on the flight", "air"),
    ("my boarding pass for the flight", "air"),
    ("the internet plan is slow", "media"),
    ("a new data plan for the internet", "media"),
    ("hello there", "air"),
    ("hello there", "media"),
]
KEYWORDS = KeywordPolicy(["seat", "zip code", "plan", "code red"], KEPT)
PATTERNS = PatternPolicy(KINDS, KEPT)
CLASSIFIER = ClassifierPolicy(train_scores(PUBLIC, 3), window=3, threshold=0.8, kept=KEPT)
WORDS = (
    f"a Seat, disseat zip code ZIP-code. red plan USR: 12345 flight jan 5 555 1234 4567 x@y.org internet {MARK}".split()
)
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join), min_size=1, max_size=4).map(
    "\n".join
)


def _redacted(policy, text, **more):
    return policy.redact({"text": text, **more})


def test_keywords_and_patterns_and_slots_hide_whole_words():
    text = "USR: Seat, disseat, (zip -- CODE) seats\nUSR: the zip red-plan"
    assert _redacted(KEYWORDS, text) == f"USR: {MARK} disseat, {MARK} seats\nUSR: the zip {MARK}"
    assert _redacted(KEYWORDS, "my zip code red now") == f"my {MARK} now", "phrases may overlap"
    text = "USR: i am raja, mail raja@x.org or call +44 20 7946 0958 on 12 May 2015"
    assert _redacted(PATTERNS, text) == f"USR: i am raja, mail {MARK} or call {MARK} on {MARK}", "values, not names"
    policy, text = SlotPolicy("slots", KEPT), "USR: i am raja kumar ok"
    assert _redacted(policy, text, slots="O O O name name O") == f"USR: i am {MARK} ok"
    assert _redacted(policy, text, slots="O O O") == f"USR: i am {MARK}", "and whatever has no label"
    assert _redacted(policy, text, slots=None) == f"USR: {MARK}"
    assert _redacted(policy, "a b", slots="? ?") == MARK


def test_a_run_is_one_mark_however_long_and_lines_stay():
    for many in (1, 2, 7):
        assert _redacted(KEYWORDS, "a " + "seat " * many + "b\nplan\nplan plan") == f"a {MARK} b\n{MARK}\n{MARK}"


def test_all_windows_of_a_line_are_hidden_and_short_lines_are_judged_whole():
    text = "USR: hello\nUSR: flight seat boarding then boarding flight seat\nUSR: the internet plan"
    assert _redacted(CLASSIFIER, text) == f"USR: hello\nUSR: {MARK}\nUSR: {MARK}"


@pytest.mark.parametrize("policy", [KEYWORDS, PATTERNS, CLASSIFIER], ids=["keywords", "patterns", "classifier"])
@given(text=TEXTS, seed=st.integers(0, 9))
def test_redaction_is_idempotent_keeps_the_rest_and_reads_the_row_alone(policy, text, seed):
    row = {"text": text}
    hidden, spans, flags = policy.redact(row), policy.spans(row), policy.flags(row)
    assert _redacted(policy, hidden) == hidden
    assert hidden.count(MARK) == len(spans)
    rebuilt, end = "", 0
    for start, stop in spans:
        rebuilt, end = rebuilt + text[end:start] + MARK, stop
    assert rebuilt + text[end:] == hidden
    words = text.split()
    left = [word for word in hidden.split() if word != MARK]
    assert left == [word for word, flag in zip(words, flags, strict=True) if not flag]
    assert not any(flag for word, flag in zip(words, flags, strict=True) if word in KEPT)
    other = {"text": " ".join(random.Random(seed).sample(WORDS, 5))}
    policy.redact(other)
    assert policy.redact(row) == hidden


@given(text=TEXTS, seed=st.integers(0, 9))
def test_the_hidden_words_change_nothing(text, seed):
    """Other words of the policy in their place, and more or fewer of them, leave the same redacted copy."""
    row, chance = {"text": text}, random.Random(seed)
    changed, end = "", 0
    for start, stop in KEYWORDS.spans(row):
        put = " ".join(chance.choices(["seat", "plan", "SEAT!", MARK], k=chance.randint(1, 4)))
        changed, end = changed + text[end:start] + put, stop
    assert _redacted(KEYWORDS, changed + text[end:]) == KEYWORDS.redact(row)


def test_policies_go_to_the_workers():
    row = {"text": "USR: seat 12345 flight internet zip code", "slots": "O name"}
    for policy in (KEYWORDS, PATTERNS, CLASSIFIER, SlotPolicy("slots")):
        again = pickle.loads(pickle.dumps(policy))
        assert (again.redact(row), again.digest) == (policy.redact(row), policy.digest)


def test_digests_name_the_content(tmp_path):
    path = tmp_path / "words.yaml"

    def config(text):
        path.write_text(text)
        return PolicyConfig(kind="keywords", file=str(path))

    first = config("{air: [Seat, zip code], media: [plan]}")
    assert first.digest == config("- plan\n- ZIP CODE\n- seat\n").digest
    resolved = first.model_dump(mode="json")
    assert set(resolved) == {"kind", "file", "digest"}
    assert config("- plan\n").digest != first.digest
    assert PolicyConfig.parse(resolved).digest == first.digest, "the file is not read again"
    with pytest.raises(ConfigError, match=r"policy.digest is '.*put its public file back"):
        make_policy(first)
    assert len({PolicyConfig(kinds=kinds).digest for kinds in (KINDS, KINDS[:2])}) == 2


def test_a_classifier_is_trained_on_the_declared_file(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "WINDOW", 3)
    monkeypatch.setattr(settings, "THRESHOLD", 0.8)
    path = tmp_path / "public.parquet"
    table = {"utterance": [text for text, _ in PUBLIC], "domain": [domain for _, domain in PUBLIC]}
    pq.write_table(pa.table(table), path)
    keys = {"kind": "classifier", "train": str(path), "text": "utterance", "label": "domain"}
    config = PolicyConfig.parse(keys)
    made = make_policy(config, KEPT)
    assert made.digest == make_policy(config, KEPT).digest == CLASSIFIER.digest
    assert _redacted(made, "USR: the internet plan") == f"USR: {MARK}"
    pq.write_table(pa.table({name: column[:4] for name, column in table.items()}), path)
    assert PolicyConfig.parse(keys).digest != config.digest
    with pytest.raises(ConfigError, match=r"policy.label is 'topic', which is not a column"):
        make_policy(PolicyConfig.parse({**keys, "label": "topic"}))
    with pytest.raises(ConfigError, match=r"policy.train has text of fewer than two domains"):
        train_scores([(text, "air") for text, _ in PUBLIC], 3)


def test_wrong_settings_and_files_without_phrases_are_refused(tmp_path):
    for keys, said in (
        ({"kind": "keywords"}, "needs policy.file"),
        ({"kind": "slots"}, "needs policy.column"),
        ({"kind": "classifier"}, "needs policy.train"),
        ({"kind": "patterns", "column": "slots"}, "policy.column means nothing where policy.kind is 'patterns'"),
        ({"kind": "keywords", "file": "missing.yaml"}, "policy.file is 'missing.yaml', which cannot be read"),
        ({"kind": "classifier", "train": "missing"}, "policy.train is 'missing', which cannot be read"),
        ({"kinds": ["name"]}, "give some of email"),
    ):
        with pytest.raises(ConfigError, match=said):
            PolicyConfig.parse(keys)
    path = tmp_path / "words.yaml"
    for content in ("seat", "[]", "{air: seat}", "- 5\n", "- '!'\n", f"- a {MARK}\n", "{a: ["):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"policy.file "):
            PolicyConfig.parse({"kind": "keywords", "file": str(path)})


# Numbers, however they are spelled: separators, dashes and blanks of Unicode, neighbours.

DASHES = ["-", "--", *map(chr, range(0x2010, 0x2016)), "\u2212"]
BLANKS = [" ", "  ", "\u00a0", *map(chr, range(0x2000, 0x200B)), "\u202f"]
BETWEEN = ["", ".", *DASHES, *BLANKS, *(f" {dash} " for dash in DASHES), "\u00ad", "\u200b"]
NUMBERS = {
    "phone": ("555", "123", "4567"),
    "international": ("+44", "20", "7946", "0958"),
    "social security": ("123", "45", "6789"),
    "card": ("4111", "1111", "1111", "1111"),
    "other card": ("3782", "822463", "10005"),
    "account": ("12345678",),
}
BEFORE, AFTER = ("", "_", "-", "(", "#", "a", "x_", "ABCDEFG"), ("", "_", "-", ")", "#", "a", "_a", "abc")


@pytest.mark.parametrize("number", NUMBERS)
def test_no_digit_of_a_number_is_left(number):
    for between, before, after in product(BETWEEN, BEFORE, AFTER):
        text = f"call {before}{between.join(NUMBERS[number])}{after} now"
        assert not re.search(r"\d", _redacted(PATTERNS, text)), repr(text)


@pytest.mark.parametrize("before", [each for each in BEFORE if each not in ("a", "ABCDEFG")])
def test_no_digit_of_a_date_is_left(before):
    for mark, year, after in product(("/", *DASHES[:1], *DASHES[2:]), ("2015", "15"), AFTER):
        for date in (f"5{mark}12{mark}{year}", f"2015{mark}05{mark}12T10:00"):
            text = f"on {before}{date}{after} now"
            assert not re.search(r"\d", _redacted(PATTERNS, text)), repr(text)


def test_years_prices_and_short_numbers_stay():
    text = "in 2021 we paid $12.50 or 1,250.00 for 3 of 40, since\u20142015, 2010\u20132015, 10\u00a0000 at 10:30"
    assert _redacted(PATTERNS, text) == text


def test_a_policy_of_other_patterns_has_another_name(monkeypatch):
    """What an earlier version hid is another release: its digest is not that of this one."""
    now = PolicyConfig(kind="patterns").digest
    monkeypatch.setattr(PatternDetector, "name", "patterns of rayprivacy, version 1")
    assert PolicyConfig(kind="patterns").digest != now
