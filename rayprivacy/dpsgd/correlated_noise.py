"""Noise that is correlated over steps: row t of C^-1 z, where z is keyed noise and C a banded Toeplitz matrix.

    w_t = (z_t - c_1 w_(t-1) - ... - c_(b-1) w_(t-b+1)) / c_0          (`release.step_mechanism` says why)

Like z, it is a function of (secret, run, step, parameter, coordinate) and of nothing else. The last b - 1 values of
what a rank owns are kept in memory, and only there: on a disk they would be noise that somebody could take off the
model. After a restart, or where another rank takes over, they are computed again from z, from step 0 on, bit for bit:
every operation is on one coordinate by itself and is rounded by itself, in whatever pieces it is done.

It costs 4 (b - 1) bytes for each coordinate, and as many multiplications and subtractions.
"""

from collections import deque
from typing import NoReturn

from torch import Tensor

from rayprivacy.dpsgd.noise import KeyedNoise

_AT_ONCE = 1 << 16  # coordinates: what is worked on stays in the processor's cache


class CorrelatedNoise:
    """Row after row of C^-1 z for one training run; prints as sealed and refuses to be pickled.

    z is `noise`, and `strategy` is c_0, ..., c_(b-1); (1.0,) leaves z as it is.
    """

    __slots__ = ("_noise", "_past", "_strategy")

    def __init__(self, noise: KeyedNoise, strategy: tuple[float, ...]) -> None:
        self._noise, self._strategy = noise, strategy
        self._past: dict[tuple[str, int, int], _Past] = {}

    def normal(self, step: int, name: str, start: int, count: int) -> Tensor:
        """Coordinates [start, start + count) of the noise of a flattened parameter: float32 [count], on the CPU.

        Read it, and change nothing in it: the noise of later steps is made of it.
        """
        if self._strategy == (1.0,):
            return self._noise.normal(step, name, start, count)
        past = self._past.setdefault((name, start, count), _Past(max(1, len(self._strategy) - 1)))
        if step < past.steps:  # a saved state was loaded
            past.values.clear()
            past.steps = 0
        for each in range(past.steps, step + 1):
            past.values.append(_row(self._noise.normal(each, name, start, count), past.values, self._strategy))
            past.steps += 1
        return past.values[-1]

    def __repr__(self) -> str:
        return "CorrelatedNoise(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("CorrelatedNoise is never pickled: make it of KeyedNoise where it is needed")


class _Past:
    """The last rows of one place, the newest at the end, and how many there were in all."""

    def __init__(self, most: int) -> None:
        self.values: deque[Tensor] = deque(maxlen=most)
        self.steps = 0


def _row(drawn: Tensor, past: deque[Tensor], strategy: tuple[float, ...]) -> Tensor:
    """The next row, in place of its own draw."""
    first, *later = strategy
    for at in range(0, len(drawn), _AT_ONCE):
        row = drawn[at : at + _AT_ONCE]
        for coefficient, earlier in zip(later, reversed(past), strict=False):
            # Two operations, each rounded: fused ones would round otherwise at the edges of vectors.
            row.sub_(earlier[at : at + _AT_ONCE] * coefficient)
        row.div_(first)
    return drawn
