"""What a tagger can say: one intent for a text, and one label for each of its words; public lists. Imports no torch.

An intent that is on no list is `other`, and a word label that is on none is `O`: for each row alone, and silently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

OTHER, OUTSIDE = "other", "O"
INTENT = "intent:"  # stands before the name of an intent in the configuration of a saved model


@dataclass(frozen=True)
class Tags:
    """Intents and slots, in their order.

    >>> tags = Tags(("play",), ("artist",))
    >>> tags.names
    ('intent:other', 'intent:play', 'O', 'B-artist', 'I-artist')
    >>> tags.intent("play"), tags.intent("sing"), tags.words("O B-artist B-year", 4)
    (1, 0, [2, 3, 2, 2])

    Attributes:
        intents: the public intents; `other` is one more.
        slots: the public slots, without `B-` and `I-`.
    """

    intents: tuple[str, ...]
    slots: tuple[str, ...]

    @staticmethod
    def of(names: Sequence[str]) -> "Tags":
        """What a saved model can say, from the names of its outputs.

        >>> Tags.of(("intent:other", "intent:play", "O", "B-artist", "I-artist"))
        Tags(intents=('play',), slots=('artist',))
        """
        intents = tuple(name.removeprefix(INTENT) for name in names if name.startswith(INTENT))
        return Tags(intents[1:], tuple(name[2:] for name in names[len(intents) + 1 :: 2]))

    @cached_property
    def all_intents(self) -> tuple[str, ...]:
        """`other`, and the public ones."""
        return (OTHER, *(name for name in self.intents if name != OTHER))

    @cached_property
    def all_words(self) -> tuple[str, ...]:
        """`O`, and two labels for each slot."""
        return (OUTSIDE, *(f"{place}-{slot}" for slot in self.slots for place in "BI"))

    @property
    def outside(self) -> int:
        """The number of `O`, of a word in no slot."""
        return len(self.all_intents)

    @property
    def names(self) -> tuple[str, ...]:
        """What a saved model calls its outputs: intents first."""
        return (*(INTENT + name for name in self.all_intents), *self.all_words)

    def intent(self, name: str | None) -> int:
        """The number of an intent."""
        return self._intents.get(str(name), 0)

    def words(self, labels: str | None, count: int) -> list[int]:
        """The numbers of the labels of `count` words, from one string with blanks; missing ones are `O`."""
        given = (labels or "").split()[:count]
        known = [self._words.get(label, self.outside) for label in given]
        return known + [self.outside] * (count - len(known))

    @cached_property
    def _intents(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.all_intents)}

    @cached_property
    def _words(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.all_words, self.outside)}


def spans(labels: Sequence[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """Slots as (name, words), from BIO labels; an `I-` that continues nothing begins a slot.

    >>> spans(["O", "B-track", "I-track", "I-year"], ["play", "two", "of", "us"])
    [('track', 'two of'), ('year', 'us')]
    """
    found: list[tuple[str, list[str]]] = []
    before = OUTSIDE
    for label, word in zip(labels, words, strict=True):
        place, _, slot = label.partition("-")
        if place == "I" and before.partition("-")[2] == slot:
            found[-1][1].append(word)
        elif place in ("B", "I"):
            found.append((slot, [word]))
        before = label
    return [(slot, " ".join(own)) for slot, own in found]
