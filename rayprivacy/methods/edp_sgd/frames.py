"""What rows say by their labels, beside what a tagger says of them: the pairs that error rates are counted on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rayprivacy.evaluation.semer import Frame
from rayprivacy.models.tags import Tags, spans


def frames(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], tags: Tags, said: Iterable[tuple[int, list[int]]]
) -> Iterator[tuple[Frame, Frame]]:
    """For each row its labels as a frame, and what a tagger found.

    Rows are private; `columns` are those of the intent and of the word labels, and `said` has numbers of the intent and
    of a label for each word of each row (`TaggedRows.by_word`).
    """
    intent, labels = columns
    for row, (number, numbers) in zip(rows, said, strict=True):
        words = str(row["text"]).split()
        there = [tags.names[each] for each in tags.words(row[labels], len(words))]
        found = [tags.names[each] for each in numbers]
        yield (
            Frame(tags.all_intents[tags.intent(row[intent])], spans(there, words)),
            Frame(tags.all_intents[number], spans(found, words)),
        )
