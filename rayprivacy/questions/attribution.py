"""Claims with passages that support them, or do not, made out of right answers (Yue et al., EMNLP Findings 2023).

    A  attributable    a question, its answer and its passage as they are
    B  contradictory   another answer, of like kind
    C  contradictory   the claim as it is; in the passage something of like kind stands in place of the answer
    D  extrapolatory   the passage becomes the one that BM25 likes best among those without the answer

If B's answer came from anywhere and D's from the first passage, looking words up would tell nearly all: on XQuAD the
micro-F1 of four such figures is .86. So B's answer stands in the passage, where there is one of its kind, and half of
D's stand in D's passage, as those of a reader that errs would. The authors let a model of questions do this.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.questions.answers import holds
from rayprivacy.questions.entities import Finder
from rayprivacy.questions.lexical import Bm25

Label = Literal["attributable", "extrapolatory", "contradictory"]
Variant = Literal["A", "B", "C", "D"]
LABELS: tuple[Label, ...] = ("attributable", "extrapolatory", "contradictory")
LABEL_OF: Mapping[Variant, Label] = {
    "A": "attributable",
    "B": "contradictory",
    "C": "contradictory",
    "D": "extrapolatory",
}
EVERY: Mapping[Variant, float] = dict.fromkeys(LABEL_OF, 1.0)
_ARTICLE = re.compile(r"(?:the|an?)\s+", re.IGNORECASE)
_TRIED = 50  # substitutes, of which one has to fit


class Claim(NamedTuple):
    """An answer to a question, and the text that may support it."""

    question: str
    answer: str
    reference: str


class Simulated(NamedTuple):
    """A claim whose label is known, because it was made so."""

    claim: Claim
    variant: Variant
    row: int  # of the question that it was made of

    @property
    def label(self) -> Label:
        """What its passage says of it."""
        return LABEL_OF[self.variant]


class _Asked(NamedTuple):
    question: str
    answer: str
    passage: int
    kind: str  # of the answer, if it is an entity


@dataclass(frozen=True)
class _Simulation:
    """Questions with their passages, and what stands in these by its kind."""

    asked: Sequence[_Asked]
    passages: Sequence[str]
    index: Bm25
    inside: Sequence[Mapping[str, Sequence[str]]]  # of each passage: texts by kind
    anywhere: Mapping[str, Sequence[str]]
    harder: bool

    @staticmethod
    def of(rows: Sequence[Json], find: Finder, harder: bool) -> "_Simulation":
        """Read the rows; answers without a kind are a kind of their own."""
        places: dict[str, int] = {}
        for row in rows:
            places.setdefault(row["context"], len(places))
        found = find([*places])
        inside: list[dict[str, list[str]]] = [defaultdict(list) for _ in places]
        asked = []
        for text, place in places.items():
            for entity in found[place]:
                inside[place][entity.kind].append(text[entity.start : entity.end])
        for row in rows:
            place, (answer, start) = places[row["context"]], _answer(row)
            kinds = (each.kind for each in found[place] if each.start < start + len(answer) and start < each.end)
            asked.append(_Asked(row["question"], answer, place, next(kinds, "")))
            inside[place][asked[-1].kind].append(answer)
        distinct = [{kind: [*dict.fromkeys(texts)] for kind, texts in each.items()} for each in inside]
        kinds_known = dict.fromkeys(kind for each in distinct for kind in each)
        anywhere = {kind: [text for each in distinct for text in each.get(kind, ())] for kind in kinds_known}
        return _Simulation(asked, [*places], Bm25(places), distinct, anywhere, harder)

    def a(self, one: _Asked, draw: random.Random) -> Claim:
        """The right answer."""
        return Claim(one.question, one.answer, self.passages[one.passage])

    def b(self, one: _Asked, draw: random.Random) -> Claim | None:
        """Another answer."""
        here = self._like(one, self.inside[one.passage], draw) if self.harder else None
        other = here or self._like(one, self.anywhere, draw)
        return other and Claim(one.question, other, self.passages[one.passage])

    def c(self, one: _Asked, draw: random.Random) -> Claim | None:
        """The right answer, which its passage no longer has."""
        other, bare = self._like(one, self.anywhere, draw), _ARTICLE.sub("", one.answer, count=1)
        if other is None:
            return None
        word = re.compile(rf"(?<!\w){re.escape(bare)}(?!\w)", re.IGNORECASE)
        reference = word.sub(lambda _: other, self.passages[one.passage])
        return None if holds(reference, one.answer) else Claim(one.question, one.answer, reference)

    def d(self, one: _Asked, draw: random.Random) -> Claim | None:
        """An answer with a passage that does not say what the right one is."""
        ranked = self.index.ranked(one.question)
        apart = (each for each in ranked if each != one.passage and not holds(self.passages[each], one.answer))
        place = next(apart, None)
        if place is None:
            return None
        misread = self.harder and draw.random() < 0.5
        other = self._like(one, self.inside[place], draw) if misread else None
        return Claim(one.question, other or one.answer, self.passages[place])

    def _like(self, one: _Asked, known: Mapping[str, Sequence[str]], draw: random.Random) -> str | None:
        """Something of the kind of an answer that is no form of it, and does not stand in the question."""
        texts = known.get(one.kind, ())
        tried = draw.sample(texts, min(_TRIED, len(texts)))
        return next((text for text in tried if not _same(text, one.answer) and not holds(one.question, text)), None)


def simulated(
    rows: Sequence[Json],
    find: Finder,
    shares: Mapping[Variant, float] = EVERY,
    *,
    harder: bool = True,
    seed: int = 0,
) -> list[Simulated]:
    """Make claims of right answers.

    Args:
        rows: questions in the form that `datasets` has of SQuAD: `question`, `context`, `answers`.
        find: what finds entities (`entities.finder`).
        shares: of how many of the questions each variant is made; some questions allow no C or D, and then others do.
        harder: B's answers, and half of D's, stand in their passages.
        seed: public; of all that is drawn.

    Raises:
        ConfigError: a row has no answer where it says, or a share is none.
    """
    _check(rows, shares)
    simulation = _Simulation.of(rows, find, harder)
    makers = {"A": simulation.a, "B": simulation.b, "C": simulation.c, "D": simulation.d}
    found = []
    for variant, share in shares.items():
        draw = random.Random(f"{seed} {variant}")
        order = draw.sample(range(len(rows)), len(rows))
        found += islice(_made(simulation.asked, order, variant, makers[variant], draw), round(share * len(rows)))
    return found


def _made(
    asked: Sequence[_Asked],
    order: Iterable[int],
    variant: Variant,
    make: Callable[[_Asked, random.Random], Claim | None],
    draw: random.Random,
) -> Iterator[Simulated]:
    for row in order:
        if claim := make(asked[row], draw):
            yield Simulated(claim, variant, row)


def _same(text: str, answer: str) -> bool:
    return holds(text, answer) or holds(answer, text)


def _answer(row: Json) -> tuple[str, int]:
    return row["answers"]["text"][0], row["answers"]["answer_start"][0]


def _check(rows: Sequence[Json], shares: Mapping[Variant, float]) -> None:
    for variant, share in shares.items():
        if variant not in LABEL_OF or not 0 <= share <= 1:
            raise ConfigError(f"shares has {variant}: {share}: name A, B, C or D with a number from 0 to 1.")
    for number, row in enumerate(rows):
        answer, start = _answer(row) if row["answers"]["text"] else ("", 0)
        if not answer or not row["context"].startswith(answer, start):
            raise ConfigError(f"row {number} of the judge's questions has no answer where it says: mend or drop it.")
