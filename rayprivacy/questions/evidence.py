"""What is asked about: sentences of passages, in place of answer evidence that a tagger would find (AEE)."""

import random
from collections.abc import Iterable, Iterator

import pyarrow as pa

from rayprivacy.core.files import Json
from rayprivacy.questions.clozes import Document, statements
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
