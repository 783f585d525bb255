"""Two corpora that differ in words alone, coupled from source to release: equal users, labels, lengths, other words."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_shards import finished

from rayprivacy.core.keys import Key
from rayprivacy.core.units import AccountKind, PrivacyUnit, Protection
from rayprivacy.corpus.layout import HOLDOUT, Layout, content_digest, prepare
from rayprivacy.corpus.phrases import tidy
from rayprivacy.corpus.settings import WHOLE, CorpusConfig
from rayprivacy.corpus.users import PLACE
from rayprivacy.sanitize.documents import Words
from rayprivacy.sanitize.documents import tidy as tidied
from rayprivacy.sanitize.job import SanitiseJob, sanitise_table
from rayprivacy.sanitize.labels import Labels
from rayprivacy.sanitize.mechanism import Coins, RandomizedResponse
from rayprivacy.sanitize.settings import LabelsConfig, SanitizeConfig

KEY, VOCABULARY = Key.for_tests(), ("the", "movie", "was", "good", "bad", "none", "7")
HALF = settings(max_examples=settings().max_examples // 2)
CONFIG = SanitizeConfig(words=len(VOCABULARY), epsilon=1.0, entities=(), max_tokens=6)
# One word each: long, of other scripts, of marks alone, what other programs take for nothing or for white space.
WORDS = ["the", "movie", "good", "A" * 3000, "None", "null", "NaN", "NA", "true", "7", "\uff17", "12", "\u00b2", "-"]
WORDS += ["?", "e\u0301", "\u00e9", "\u0301", "\u200b", "\ufeff", "\u00ad", "\u202e", "\ufffd", "\U0001f642"]
WORDS += ["\U000e0001", "\x1c", "\x1f", "\u180e", "\u0130", "\u00df", "\ufb01", "\ua7d3", "n't", "'s", "\u2019s"]
GAPS = [" ", "  ", "\t", "\n", "\r\n", "\x0b", "\x85", "\u00a0", "\u2028", "\u3000", " \ue000 ", "\x00"]
NOTHING = [None, "", " ", "\n", "\u3000", "\ue000", "\x00"]  # documents without a word


def _words(texts):
    """How many words each text has, by the public rule."""
    return Words(VOCABULARY).ids([tidied(text or "") for text in texts], 10**9)[1].tolist()


def test_every_word_of_these_tests_is_one():
    assert _words([f"the {word} the" for word in WORDS]) == [3] * len(WORDS)
    assert _words(WORDS) == [1] * len(WORDS)
    assert _words([f"the{gap}the" for gap in GAPS]) == [2] * len(GAPS)
    assert _words(NOTHING) == [0] * len(NOTHING)


@dataclass(frozen=True)
class Rows:
    """A corpus as it is read: users, labels and texts, and where the blocks end that it is read in."""

    users: tuple[str | None, ...]
    labels: tuple[str | None, ...]
    texts: tuple[str | None, ...]
    cut: int

    def blocks(self, join):
        rows = range(len(self.users))
        columns = {"user": self.users, "text": self.texts, "topic": self.labels}
        columns |= {"by": ["talk"] * len(rows), "order": [str(row % 2) for row in rows]} if join else {}
        columns[PLACE] = [f"0-{row}" for row in rows]
        table = pa.table({name: pa.array(list(values), pa.string()) for name, values in columns.items()})
        return [table[: self.cut], table[self.cut :]]


def _text(words):
    if not words:
        return st.sampled_from(NOTHING)
    ends, gaps = st.sampled_from(["", *GAPS]), st.lists(st.sampled_from(GAPS), min_size=words - 1, max_size=words - 1)
    line = st.lists(st.sampled_from(WORDS), min_size=words, max_size=words)
    return st.builds(
        lambda start, words, gaps, end: start + "".join(map("".join, zip(words, [*gaps, end], strict=True))),
        ends, line, gaps, ends,
    )  # fmt: skip


@st.composite
def neighbours(draw):
    """Two corpora with the same users, labels and numbers of words."""
    count = draw(st.integers(0, 9))
    users = tuple(draw(st.sampled_from(["ann", "bob", "cy", None])) for _ in range(count))
    labels = tuple(draw(st.sampled_from(["x", "None", None])) for _ in range(count))
    lengths = [draw(st.integers(0, 8)) for _ in range(count)]
    one, other = (tuple(draw(_text(length)) for length in lengths) for _ in range(2))
    return tuple(Rows(users, labels, texts, draw(st.integers(0, count))) for texts in (one, other))  # type: ignore[return-value]


def _layout(unit, parts, join=False):
    turns = {"by": "talk", "order": "turn", "prefix": "USR: "} if join else None
    most = 2 if unit is PrivacyUnit.USER else None
    config = CorpusConfig(labels=("topic",), join=turns, max_records_per_user=most, max_chars=WHOLE, holdout=0.2)
    return Layout(config, parts, 1, unit, by_place=True)


def _sharded(rows, layout):
    """The rows of every part, and of those held out, without Ray."""
    tidied = [tidy(block, KEY, layout, None)[0] for block in rows.blocks(layout.config.join is not None)]
    return finished(pa.concat_tables([prepare(block, KEY, layout)[0] for block in tidied]), KEY, layout)


def _released(sharded, config=CONFIG):
    labels, nowhere, release = Labels(config.labels, ("topic",)), Path("nowhere"), ("account", "release", "inputs")
    mechanism = RandomizedResponse(len(VOCABULARY), 1.0)
    job = SanitiseJob(config, VOCABULARY, mechanism, labels, nowhere, nowhere, release, nowhere)
    coins = Coins(KEY, *job.release)
    made = [sanitise_table(rows, job, KEY, coins) for part, rows in sharded.items() if part != HOLDOUT]
    assert all(table.schema == job.schema for table in made)
    table = pa.concat_tables(made)
    return table.take(pc.sort_indices(table["document"]))


def _shape(released):
    return [(row["document"], row["topic"], _words([row["text"]])[0]) for row in released.to_pylist()]


TWO_EQUAL = (
    Rows(("ann",) * 3, ("x",) * 3, ("the movie was good", "the movie was bad", "the"), 2),
    Rows(("ann",) * 3, ("x",) * 3, ("the movie was good", "the movie was good", "A" * 3000), 1),
)
TRIMMED = (Rows(("ann",), (None,), ("the good",), 0), Rows(("ann",), (None,), ("the \x1c",), 1))
EMPTY = (Rows(("ann", "bob"), (None,) * 2, (" ", "the"), 1), Rows(("ann", "bob"), (None,) * 2, ("\ue000", "\u200b"), 1))
CASES = [(PrivacyUnit.USER, False), (PrivacyUnit.USER, True), (PrivacyUnit.RECORD, False)]


@pytest.mark.parametrize(("unit", "join"), CASES, ids=["user", "turns of a user", "record"])
@HALF
@given(pair=neighbours())
@example(pair=TWO_EQUAL)
@example(pair=TRIMMED)
@example(pair=EMPTY)
def test_what_is_released_of_neighbours_has_one_shape(unit, join, pair):
    """Also where the two are read in other blocks; and other parts write the same rows."""
    one, other = (_sharded(rows, _layout(unit, 2, join)) for rows in pair)
    for part, rows in one.items():
        assert rows.drop_columns("text").equals(other[part].drop_columns("text"))
    first, second = _released(one), _released(other)
    assert _shape(first) == _shape(second)
    assert first.equals(_released(_sharded(pair[0], _layout(unit, 1, join))))


@HALF
@given(pair=neighbours())
@example(pair=TWO_EQUAL)
def test_every_row_with_a_user_is_a_document_up_to_the_bound(pair):
    rows, _ = pair
    found = pa.concat_tables(_sharded(rows, _layout(PrivacyUnit.RECORD, 2)).values()).to_pylist()
    lengths = dict(zip([f"0-{row}" for row in range(len(rows.users))], _words(rows.texts), strict=True))
    expected = [place for place, user in zip(lengths, rows.users, strict=True) if user is not None]
    assert sorted(row[PLACE] for row in found) == sorted(expected)
    assert _words([row["text"] for row in found]) == [lengths[row[PLACE]] for row in found]
    bounded = pa.concat_tables(_sharded(rows, _layout(PrivacyUnit.USER, 2)).values())["user"].to_pylist()
    for user in set(rows.users) - {None}:
        assert bounded.count(user) == min(2, rows.users.count(user))


def test_equal_documents_are_several_and_a_missing_label_is_not_its_name():
    rows = Rows(("ann",) * 4, (None, "None", None, "None"), ("the movie",) * 4, 2)
    released = _released(_sharded(rows, _layout(PrivacyUnit.RECORD, 2)))
    assert len(set(released["document"].to_pylist())) == 4
    assert Counter(released["topic"].to_pylist()) == {None: 2, "None": 2}


def test_a_missing_label_is_randomised_as_one_that_is_on_no_list():
    """And not as the value 'None', which it would be nearly always here."""
    listed = LabelsConfig(kind="randomize", epsilon=30.0, values={"topic": ("None", "x")})
    rows = Rows(("ann",) * 64, (None,) * 64, ("the",) * 64, 0)
    found = _released(_sharded(rows, _layout(PrivacyUnit.RECORD, 1)), CONFIG.model_copy(update={"labels": listed}))
    assert 10 < found["topic"].to_pylist().count("x") < 54


@pytest.mark.parametrize("unit", [PrivacyUnit.USER, PrivacyUnit.RECORD], ids=str)
def test_what_stands_where_is_part_of_what_is_charged(unit):
    """Coins go by place: of two texts that change places each would be drawn for twice, under one charge."""
    layout = _layout(unit, 1)
    layout = replace(layout, config=layout.config.model_copy(update={"holdout": 0.0}))
    orders = [("the movie", "was good", "bad"), ("bad", "was good", "the movie"), ("was good", "the movie", "bad")]
    rows = [Rows(("ann",) * 3, (None,) * 3, texts, 0) for texts in orders]
    assert len({content_digest(_sharded(each, layout)[0], KEY, unit) for each in rows}) == 3


def test_the_kind_of_a_claim_says_whether_it_compares_words():
    kinds = {kind: Protection(kind=kind).is_word_for_word for kind in AccountKind}
    assert kinds == {AccountKind.CENTRAL: False, AccountKind.METRIC_LOCAL: True, AccountKind.SELECTIVE: False}
