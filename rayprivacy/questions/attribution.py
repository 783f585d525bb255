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
from collections.abc import Mapping, Sequence
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
LABEL_OF: Mapping[Variant, Label] = {"A": LABELS[0], "B": LABELS[2], "C": LABELS[2], "D": LABELS[1]}
EVERY: Mapping[Variant, float] = dict.fromkeys(LABEL_OF, 1.0)
_ARTICLE = re.compile(r"(?:the|an?)\s+", re.IGNORECASE)
_TRIED = 50  # substitutes, of which one has to fit
_Kinds = defaultdict[str, list[str]]  # texts by kind


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
    passage: str
    kind: str  # of the answer, if it is an entity; what is none is a kind of its own


@dataclass(frozen=True)
class _Simulation:
    """Questions about passages, and what else stands in these."""

    asked: Sequence[_Asked]
    passages: Sequence[str]
    index: Bm25
    inside: Mapping[str, _Kinds]  # each passage
    anywhere: _Kinds
    harder: bool

    @staticmethod
    def of(rows: Sequence[Json], find: Finder, harder: bool) -> "_Simulation":
        passages = [*dict.fromkeys(row["context"] for row in rows)]
        found = dict(zip(passages, find(passages), strict=True))
        inside, anywhere, asked = {text: _Kinds(list) for text in passages}, _Kinds(list), []
        for text, entities in found.items():
            for each in entities:
                inside[text][each.kind].append(text[each.start : each.end])
        for row in rows:
            text, answer, start = row["context"], row["answers"]["text"][0], row["answers"]["answer_start"][0]
            kinds = (each.kind for each in found[text] if each.start < start + len(answer) and start < each.end)
            asked.append(_Asked(row["question"], answer, text, next(kinds, "")))
            inside[text][asked[-1].kind].append(answer)
        for own in inside.values():
            for kind, texts in own.items():
                anywhere[kind] += texts
        return _Simulation(asked, passages, Bm25(passages), inside, anywhere, harder)

    def claim(self, variant: Variant, one: _Asked, draw: random.Random) -> Claim | None:
        """A claim of some variant made of a question; None where there is none."""
        make = {"A": self._a, "B": self._b, "C": self._c, "D": self._d}[variant]
        return make(one, draw)

    def _a(self, one: _Asked, draw: random.Random) -> Claim | None:
        return Claim(one.question, one.answer, one.passage)

    def _b(self, one: _Asked, draw: random.Random) -> Claim | None:
        here = self._like(one, self.inside[one.passage], draw) if self.harder else None
        other = here or self._like(one, self.anywhere, draw)
        return Claim(one.question, other, one.passage) if other else None

    def _c(self, one: _Asked, draw: random.Random) -> Claim | None:
        bare, other = _ARTICLE.sub("", one.answer, count=1), self._like(one, self.anywhere, draw)
        if other is None:
            return None
        reference = re.sub(rf"(?<!\w){re.escape(bare)}(?!\w)", lambda _: other, one.passage, flags=re.IGNORECASE)
        return None if holds(reference, one.answer) else Claim(one.question, one.answer, reference)

    def _d(self, one: _Asked, draw: random.Random) -> Claim | None:
        ranked = (self.passages[place] for place in self.index.ranked(one.question))
        passage = next((text for text in ranked if text != one.passage and not holds(text, one.answer)), None)
        if passage is None:
            return None
        misread = self.harder and draw.random() < 0.5
        other = self._like(one, self.inside[passage], draw) if misread else None
        return Claim(one.question, other or one.answer, passage)

    def _like(self, one: _Asked, known: _Kinds, draw: random.Random) -> str | None:
        """Something of the kind of an answer that is no form of it, and does not stand in the question."""
        texts = known.get(one.kind, [])
        for text in draw.sample(texts, min(_TRIED, len(texts))):
            if not (holds(text, one.answer) or holds(one.answer, text) or holds(one.question, text)):
                return text
        return None


def simulated(
    rows: Sequence[Json], find: Finder, shares: Mapping[Variant, float] = EVERY, *, harder: bool = True, seed: int = 0
) -> list[Simulated]:
    """Make claims of right answers.

    Args:
        rows: questions in the form that `datasets` has of SQuAD: `question`, `context`, `answers`.
        find: what finds entities (`entities.finder`).
        shares: of how many of the questions each variant is made; where a question allows none, others do.
        harder: B's answers, and half of D's, stand in their passages.
        seed: public; of all that is drawn.

    Raises:
        ConfigError: a row has no answer where it says, or a share is none.
    """
    for variant, share in shares.items():
        if variant not in LABEL_OF or not 0 <= share <= 1:
            raise ConfigError(f"shares has {variant}: {share}: name A, B, C or D with a number from 0 to 1.")
    for number, row in enumerate(rows):
        places = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        if not any(text and row["context"].startswith(text, start) for text, start in islice(places, 1)):
            raise ConfigError(f"row {number} of the judge's questions has no answer where it says: mend or drop it.")
    simulation, found = _Simulation.of(rows, find, harder), list[Simulated]()
    for variant, share in shares.items():
        draw = random.Random(f"{seed} {variant}")
        order = draw.sample(range(len(rows)), len(rows))
        tried = ((simulation.claim(variant, simulation.asked[row], draw), row) for row in order)
        made = (Simulated(claim, variant, row) for claim, row in tried if claim)
        found += islice(made, round(share * len(rows)))
    return found
