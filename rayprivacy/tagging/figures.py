"""Semantic error rate (Su et al., 2018): how many slots and intents a tagger gets wrong, for each there is; no torch.

    (substitutions + deletions + insertions) / (slots of the reference + 1)

The intent counts as one more slot. A slot is right when its name and its words are; of what is left over, slots of one
name on both sides are substitutions, others are deletions or insertions. Insertions can make it exceed 1.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Slot = tuple[str, str]


@dataclass(frozen=True)
class Frame:
    """The intent of a text, and name and words of each slot, in any order."""

    intent: str
    slots: Sequence[Slot]


@dataclass(frozen=True)
class Errors:
    """Errors in some texts.

    Attributes:
        intents: wrong intents.
        substitutions: slots with other words.
        deletions: slots that were not found.
        insertions: slots that are not there.
        texts: how many texts.
        slots: slots of the reference.
    """

    intents: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    texts: int = 0
    slots: int = 0

    @property
    def rate(self) -> float:
        """Semantic error rate."""
        wrong = self.intents + self.substitutions + self.deletions + self.insertions
        return wrong / (self.slots + self.texts)


def errors_of(reference: Frame, found: Frame) -> Errors:
    """Errors in one text.

    >>> truth = Frame("play", [("artist", "the doors"), ("year", "1967")])
    >>> errors_of(truth, Frame("book", truth.slots)).rate == 1 / 3
    True
    >>> errors_of(truth, Frame("play", [("artist", "doors"), ("track", "1967")]))
    Errors(intents=0, substitutions=1, deletions=1, insertions=1, texts=1, slots=2)
    """
    there, said = Counter(reference.slots), Counter(found.slots)
    missed, extra = (Counter(name for name, _ in left.elements()) for left in (there - said, said - there))
    substitutions = (missed & extra).total()
    return Errors(
        int(reference.intent != found.intent),
        substitutions,
        missed.total() - substitutions,
        extra.total() - substitutions,
        1,
        there.total(),
    )


def all_errors(pairs: Iterable[tuple[Frame, Frame]]) -> Errors:
    """Errors in many texts, each given as reference and what was found."""
    total = Errors()
    for reference, found in pairs:
        one = errors_of(reference, found)
        total = Errors(*(getattr(total, name) + getattr(one, name) for name in Errors.__dataclass_fields__))
    return total
