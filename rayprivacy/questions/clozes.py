"""Clozes after C-MORE (Yue et al., ACL 2022): a statement with its answer taken out, and a passage that holds it.

    a sentence of a document -> one of its entities, drawn, becomes a phrase that asks for its kind  (the question)
                             -> the passage of the document with the highest BM25 score for it      (the context)

Where rows say which document they are of, a sentence is asked of the rest of its document, as C-MORE asks a statement
of the page that it cites: the passage says the same in other words, or only nearly so. Where each text is its own
document the sentence stays in its passage, and the answer is right for certain, and easy to find.

The document frequencies of BM25 are those of one document. An entity whose best passage does not hold it is no answer,
nor is one that still stands in the question; the next one is tried, so that each of those that pass is as likely.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rayprivacy.questions.answers import holds
from rayprivacy.questions.entities import Entity
from rayprivacy.questions.lexical import Bm25
from rayprivacy.questions.passages import Span, blocks, sentences
from rayprivacy.questions.settings import EvidenceConfig, PassagesConfig

PHRASES: Mapping[str, tuple[str, ...]] = {  # table C.1
    "CARDINAL": ("what",),
    "DATE": ("when", "what time", "what date"),
    "EVENT": ("what event", "what", "which event"),
    "FAC": ("where", "what buildings"),
    "GPE": ("where", "what country"),
    "LANGUAGE": ("what language", "which language"),
    "LAW": ("which law", "what law"),
    "LOC": ("where", "what location", "which place", "what place"),
    "MONEY": ("how much money", "how much"),
    "NORP": ("what", "what groups", "where"),
    "ORDINAL": ("what rank", "what"),
    "ORG": ("which organization", "what organization", "what"),
    "PERCENT": ("what percent", "what percentage"),
    "PERSON": ("who", "which person"),
    "PRODUCT": ("what", "what product"),
    "QUANTITY": ("how many", "how much"),
    "TIME": ("when", "what time"),
    "WORK_OF_ART": ("what", "what title"),
}


@dataclass(frozen=True)
class Passage:
    """A passage of one of a document's texts: what is looked for."""

    id: str  # the number of its text among all, and of the word at which it begins
    title: str
    text: str
    number: int  # of its text in the document
    span: Span


@dataclass(frozen=True)
class Cloze:
    """A question, its answer, and where in a passage of the document the answer stands."""

    question: str
    phrase: str
    kind: str  # of the entity that answers it
    answer: str
    passage: int  # of `Document.passages`
    evidence: Span  # the sentence of the passage
    start: int  # of the answer in the passage


@dataclass(frozen=True)
class Document:
    """The texts of one document, their numbers among all texts, and how they are cut into passages."""

    number: int
    title: str  # empty where no column names documents
    texts: Sequence[str]
    rows: Sequence[int]
    cut: PassagesConfig

    @cached_property
    def passages(self) -> list[Passage]:
        """All passages, in the order of the texts."""
        return [
            Passage(f"p{row}-{len(text[: span[0]].split())}", self.title, text[slice(*span)], number, span)
            for number, (row, text) in enumerate(zip(self.rows, self.texts, strict=True))
            for span in blocks(text, self.cut.words, self.cut.stride)
        ]

    @cached_property
    def index(self) -> Bm25:
        """BM25 within the document."""
        return Bm25(passage.text for passage in self.passages)

    def clozes(
        self, found: Sequence[Sequence[Entity]], evidence: EvidenceConfig, elsewhere: bool, draw: random.Random
    ) -> Iterator[Cloze]:
        """The clozes of a document, given the entities of its texts; `elsewhere` leaves out a sentence's own place."""
        for number, text in enumerate(self.texts):
            for start, end in statements(text, evidence, draw):
                inside = [each for each in found[number] if start <= each.start and each.end <= end]
                apart = [
                    place
                    for place, passage in enumerate(self.passages)
                    if not elsewhere or passage.number != number or not _meet(passage.span, (start, end))
                ]
                draw.shuffle(inside)
                tried = (self._cloze(text[start:end], start, each, apart, draw) for each in inside)
                if cloze := next(filter(None, tried), None):
                    yield cloze

    def _cloze(
        self, statement: str, begin: int, entity: Entity, among: Sequence[int], draw: random.Random
    ) -> Cloze | None:
        phrases = PHRASES.get(entity.kind)
        if phrases is None:
            return None
        phrase, (start, end) = draw.choice(phrases), (entity.start - begin, entity.end - begin)
        answer, question = statement[start:end], statement[:start] + phrase + statement[end:]
        if holds(question, answer):
            return None
        best = self.index.ranked(question, among)[:1]
        place = where(self.passages[best[0]].text, question, answer) if best else None
        return Cloze(question, phrase, entity.kind, answer, best[0], *place) if place else None


def statements(text: str, evidence: EvidenceConfig, draw: random.Random) -> list[Span]:
    """The sentences of a text that are asked about."""
    least, most = evidence.words
    fit = [(start, end) for start, end in sentences(text) if least <= len(text[start:end].split()) <= most]
    return fit if len(fit) <= evidence.most else sorted(draw.sample(fit, evidence.most))


def where(passage: str, question: str, answer: str) -> tuple[Span, int] | None:
    """The sentence of a passage with an answer that shares most with its question, and the answer's place."""
    word = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
    holding = [(start, end) for start, end in sentences(passage) if word.search(passage, start, end)]
    if not holding:
        return None
    ranked = Bm25(passage[slice(*span)] for span in holding).ranked(question) if len(holding) > 1 else []
    start, end = holding[ranked[0] if ranked else 0]
    match = word.search(passage, start, end)
    return ((start, end), match.start()) if match else None


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]
