"""What asks questions about row groups of texts: so far clozes. It runs in an actor, and knows nothing of Ray."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from rayprivacy.core.files import Json
from rayprivacy.questions.clozes import Document
from rayprivacy.questions.entities import finder
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.questions.table import ASKED
from rayprivacy.questions.texts import Texts


@dataclass(frozen=True)
class Asking:
    """What an actor is told: where the texts are, and how they are asked about."""

    texts: Texts
    settings: QuestionsConfig
    elsewhere: bool  # whether a sentence is asked of the rest of its document


class Asker:
    """What asks about the row groups of a file."""

    def __init__(self, asking: Asking) -> None:
        self._asking, self._find = asking, finder(asking.settings.entities)

    def __call__(self, number: int, group: int) -> pa.Table:
        """The questions about a row group, in the order of its texts."""
        found = [row for document in self._asking.texts.documents(group) for row in self._asked(document)]
        return pa.Table.from_pylist(found, ASKED)

    def _asked(self, document: Document) -> Iterator[Json]:
        settings = self._asking.settings
        draw = random.Random(f"{settings.seed} {document.number}")
        found = self._find(document.texts)
        for cloze in document.clozes(found, settings.evidence, self._asking.elsewhere, draw):
            passage, (start, end) = document.passages[cloze.passage], cloze.evidence
            yield {
                "document": document.number,
                "passage": passage.id,
                "title": passage.title,
                "context": passage.text,
                "question": cloze.question,
                "answers": {"text": [cloze.answer], "answer_start": [cloze.start]},
                "answer_kind": "span",
                "evidence": passage.text[start:end],
                "evidence_start": start,
                "phrase": cloze.phrase,
                "type": cloze.kind,
            }
