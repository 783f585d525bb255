"""Facts: of released counts the answer that most users gave, and passages, questions and answers written from them.

Everything here is post-processing of what is released, by public templates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from rayprivacy.core.files import Json
from rayprivacy.knowledge.kinds import shown, titled
from rayprivacy.knowledge.reading import Vote
from rayprivacy.knowledge.settings import NAME, AttributeConfig, KnowledgeConfig
from rayprivacy.questions.clozes import Passage
from rayprivacy.questions.table import ASKED
from rayprivacy.release.thresholded import ReleasedCounts

_KEY = [(column, pa.string()) for column in ("name", "attribute", "answer")]
FACTS = pa.schema([*_KEY, *((column, pa.float64()) for column in ("count", "low", "high"))])


def answers(released: ReleasedCounts) -> pa.Table:
    """Released answers (`FACTS`): each with its noisy number of users and the ends of a 95% interval."""
    votes = [Vote.of(key)._asdict() for key in released.keys]
    low, high = released.interval()
    ends = ({"count": count, "low": a, "high": b} for count, a, b in zip(released.counts, low, high, strict=True))
    return pa.Table.from_pylist([vote | each for vote, each in zip(votes, ends, strict=True)], schema=FACTS)


def facts(counted: pa.Table) -> pa.Table:
    """One answer to each question: the one with the largest count, of equal ones the first by its letters."""
    best: dict[tuple[str, str], Json] = {}
    for row in counted.sort_by([("count", "descending"), ("answer", "ascending")]).to_pylist():
        best.setdefault((row["name"], row["attribute"]), row)
    return pa.Table.from_pylist([best[key] for key in sorted(best)], schema=FACTS)


@dataclass(frozen=True)
class Stated:
    """A fact in a passage: its sentence, and where sentence and answer begin."""

    sentence: str
    start: int
    answer: str
    answer_start: int


def passages(found: pa.Table, config: KnowledgeConfig) -> list[Passage]:
    """The passages about each name, one in each wording, that state all of its facts."""
    return [passage for passage, _ in _written(found, config)]


def asked(found: pa.Table, config: KnowledgeConfig) -> pa.Table:
    """The questions about each fact, with their answers in a passage, as `questions.table` has them (`ASKED`).

    The k-th question of a fact is asked of the k-th wording, or begins again at the first.
    """
    attributes = {each.name: each for each in config.attributes}
    rows, wordings = list[Json](), _wordings(config)
    for place, (passage, stated) in enumerate(_written(found, config)):
        for attribute, where in stated.items():
            for phrase in attributes[attribute].questions[place % wordings :: wordings]:
                rows.append(_row(place // wordings, passage, attributes[attribute], phrase, where))
    return pa.Table.from_pylist(rows, schema=ASKED)


def _row(document: int, passage: Passage, attribute: AttributeConfig, phrase: str, where: Stated) -> Json:
    question = phrase.replace(NAME, passage.title)
    return {
        "document": document,
        "passage": passage.id,
        "title": passage.title,
        "context": passage.text,
        "question": question,
        "answers": {"text": [where.answer], "answer_start": [where.answer_start]},
        "answer_kind": "span",
        "evidence": where.sentence,
        "evidence_start": where.start,
        "phrase": " ".join(question.split()[:2]),
        "type": attribute.kind,
    }


def _written(found: pa.Table, config: KnowledgeConfig) -> Iterator[tuple[Passage, Mapping[str, Stated]]]:
    answers = {(row["name"], row["attribute"]): row["answer"] for row in found.to_pylist()}
    for document, name in enumerate(sorted({name for name, _ in answers})):
        for wording in range(_wordings(config)):
            text, stated = "", {}
            for each in config.attributes:
                if (answer := answers.get((name, each.name))) is not None:
                    text += " " if text else ""
                    stated[each.name] = _stated(text, titled(name), each, answer, wording)
                    text += stated[each.name].sentence
            yield Passage(f"f{document}-{wording}", titled(name), text, wording, (0, len(text))), stated


def _stated(before: str, name: str, attribute: AttributeConfig, answer: str, wording: int) -> Stated:
    """A fact behind the text before it."""
    sentence = attribute.sentences[wording % len(attribute.sentences)].replace("{attribute}", attribute.name)
    first, rest = (part.replace(NAME, name) for part in sentence.split("{answer}", 1))
    said = shown(answer, attribute)
    start = len(before)
    return Stated(f"{first}{said}{rest.replace('{answer}', said)}", start, said, start + len(first))


def _wordings(config: KnowledgeConfig) -> int:
    return max(len(each.sentences) for each in config.attributes)
