"""Semantic error rate: what counts as which error, and the bounds of the rate."""

from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.tagging.figures import Errors, Frame, all_errors, errors_of
from rayprivacy.tagging.settings import Tags, spans

TRUTH = Frame("play", [("artist", "the doors"), ("year", "1967"), ("artist", "love")])
FRAMES = st.builds(
    Frame,
    st.sampled_from(["play", "book"]),
    st.lists(st.tuples(st.sampled_from(["artist", "year", "city"]), st.sampled_from(["a", "b"])), max_size=5),
)


def test_rates_by_hand() -> None:
    for slots in range(4):
        held = TRUTH.slots[:slots]
        assert errors_of(Frame("play", held), Frame("book", held)).rate == 1 / (slots + 1)
    found = errors_of(Frame("play", []), Frame("play", [("artist", "a"), ("artist", "a")]))
    assert (found.insertions, found.rate) == (2, 2.0), "insertions alone can exceed one"
    found = errors_of(TRUTH, Frame("book", [("artist", "doors"), ("city", "1967"), ("artist", "love")]))
    assert found == Errors(intents=1, substitutions=1, deletions=1, insertions=1, texts=1, slots=3)
    assert found.rate == 1.0
    pairs = [(TRUTH, Frame("book", TRUTH.slots)), (Frame("play", []), Frame("play", []))]
    assert all_errors(pairs).rate == 1 / 5, "over the slots of all texts"


@given(FRAMES, FRAMES)
def test_errors_are_those_of_the_other_side_mirrored(one: Frame, other: Frame) -> None:
    there, back = errors_of(one, other), errors_of(other, one)
    assert (there.deletions, there.insertions) == (back.insertions, back.deletions)
    assert (there.substitutions, there.intents) == (back.substitutions, back.intents)
    assert there.substitutions + there.deletions <= there.slots
    assert (there.rate == 0) == (one.intent == other.intent and sorted(one.slots) == sorted(other.slots))


@given(st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), max_size=9))
def test_spans_hold_every_word_that_has_a_slot(labels: list[str]) -> None:
    words = [str(at) for at in range(len(labels))]
    inside = [word for label, word in zip(labels, words, strict=True) if label != "O"]
    assert [word for _, said in spans(labels, words) for word in said.split()] == inside
    assert len(spans(labels, words)) >= sum(label.startswith("B") for label in labels)


def test_labels_that_are_missing_or_unknown_are_outside() -> None:
    tags = Tags(("play",), ("artist",))
    assert [tags.names[at] for at in tags.words("B-artist I-city", 4)] == ["B-artist", "O", "O", "O"]
    assert tags.words(None, 2) == [2, 2]
    assert tags.words("O O O", 1) == [2], "more labels than words"
    assert tags.intent(None) == tags.intent("sing") == 0
