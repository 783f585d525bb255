"""What is asked about: pieces of passages that hold something worth a question (answer evidence extraction, AEE).

By default they are sentences. Where a tagger finds them, its labels are in pieces that `merge_and_drop` puts together.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from rayprivacy.core.files import Json
from rayprivacy.questions.clozes import Document, statements
from rayprivacy.questions.passages import Span
from rayprivacy.questions.settings import EvidenceConfig
from rayprivacy.questions.table import ASKED

EVIDENCE = pa.schema(
    [ASKED.field(name) for name in ("document", "passage", "title", "context", "evidence", "evidence_start")]
)


def evidence_table(documents: Iterable[Document], config: EvidenceConfig, seed: int) -> pa.Table:
    """The sentences that are asked about, each in the first passage that holds it whole; the seed draws which.

    A sentence that no passage holds whole, because it is longer than two of them share, is left out.
    """
    rows = [row for document in documents for row in _found(document, config, seed)]
    return pa.Table.from_pylist(rows, EVIDENCE)


def _found(document: Document, config: EvidenceConfig, seed: int) -> Iterator[Json]:
    draw = random.Random(f"{seed} {document.number}")
    for number, text in enumerate(document.texts):
        for start, end in statements(text, config, draw):
            holding = (
                each
                for each in document.passages
                if each.number == number and each.span[0] <= start and end <= each.span[1]
            )
            if passage := next(holding, None):
                yield {
                    "document": document.number,
                    "passage": passage.id,
                    "title": passage.title,
                    "context": passage.text,
                    "evidence": text[start:end],
                    "evidence_start": start - passage.span[0],
                }


def merge_and_drop(labels: Sequence[str], least: int = 3, gap: int = 3) -> list[Span]:
    """The spans of a tagger's labels `B`, `I` and `O`: long ones, and short ones that are near to others.

    A span of more than `least` words stays. A shorter one is merged with the closest other, and with what is between
    them, where that is fewer than `gap` words; what came of it is looked at again. Without one so near it is dropped.

    >>> merge_and_drop("B O B I I O".split()), merge_and_drop("B I O O O O B I I I".split())
    ([(0, 5)], [(6, 10)])
    """
    spans = _spans(labels)
    while short := next((span for span in spans if span[1] - span[0] <= least), None):
        spans.remove(short)
        if spans and _distance(closest := min(spans, key=lambda span: _distance(span, short)), short) < gap:
            place = spans.index(closest)
            spans[place] = (min(short[0], closest[0]), max(short[1], closest[1]))
    return spans


def _spans(labels: Sequence[str]) -> list[Span]:
    """Stretches of one `B` and the `I` behind it; an `I` that continues nothing begins one."""
    found: list[Span] = []
    for place, label in enumerate(labels):
        if label == "I" and found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        elif label != "O":
            found.append((place, place + 1))
    return found


def _distance(one: Span, other: Span) -> int:
    """The words between two spans that do not overlap."""
    return max(one[0] - other[1], other[0] - one[1])
