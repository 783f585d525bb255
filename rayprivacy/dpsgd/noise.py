"""Keyed Gaussian noise for DP-SGD: a function of (secret, run, step, parameter, coordinate) and of nothing else.

A step releases (sum of clipped gradients + N(0, sigma^2 C^2 I)) / B (Abadi et al., 2016). Whoever owns a coordinate of
the optimizer draws its noise, from its own place in one keyed stream. So rank, ZeRO stage and world size cannot change
the noise or draw it twice; two ranks never share noise unless they hold the same coordinate; and a step that runs again
after a crash gets the noise that it had: the released value is the same one, not a second look at the gradients.

The stream. AES-256 in counter mode, under a key that is the PRF of (run, step, parameter name). Block j holds two
little-endian 64-bit words, whose upper 53 bits are k1 and k2, and makes coordinates 2j and 2j + 1 by Box and Muller
(1958), in float64:

    u1 = (k1 + 1) / 2^53 in (0, 1],   u2 = k2 / 2^53 in [0, 1),   z = sqrt(-2 ln u1) * (cos, sin)(2 pi u2)

Why AES, and not torch's random numbers? Noise hides the gradients only as long as it cannot be computed by others. On a
CPU torch keeps 32 bits of its seed, so that 2^32 trials find the noise; unseeded, it starts from a public constant.

**The noise is as secret as the key file.** Whoever holds it can subtract it, and has the bare sum of gradients. It is
never logged, saved, or sent to another rank; the object that draws it prints as sealed and refuses to be pickled.

What is not exact: the values are float32, not the discrete Gaussian of release/noise.py, and they end at 8.58, where a
Gaussian has a tail of 1e-17. Accounting treats them as a continuous Gaussian, as for every DP-SGD on floating-point
hardware. Machines with other vector units may differ in the last bit; on one machine all is reproduced exactly.

Noise may be *correlated* over steps: row t of C^-1 z, where z is keyed noise and C a banded Toeplitz matrix.

    w_t = (z_t - c_1 w_(t-1) - ... - c_(b-1) w_(t-b+1)) / c_0          (`release.step_mechanism` says why)

Like z, it is a function of (secret, run, step, parameter, coordinate) and of nothing else. The last b - 1 values of
what a rank owns are kept in memory, and only there: on a disk they would be noise that somebody could take off the
model. After a restart, or where another rank takes over, they are computed again from z, from step 0 on, bit for bit:
every operation is on one coordinate by itself and is rounded by itself, in whatever pieces it is done.

It costs 4 (b - 1) bytes for each coordinate, and as many multiplications and subtractions.
"""

import math
from collections import deque
from typing import NoReturn

import torch
from torch import Tensor

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import BLOCK_BYTES, Key, keystream

# Scratch of 1.5 MB stays in the processor's cache, and is too small for torch to split it between threads.
_PAIRS_AT_ONCE = 1 << 14
_LOW_53_BITS = (1 << 53) - 1
_AT_ONCE = 1 << 16  # coordinates of a row: what is worked on stays in the processor's cache


class KeyedNoise:
    """Standard normal noise of one training run; prints as sealed and refuses to be pickled.

    >>> noise = KeyedNoise(Key.for_tests(), "run-1")
    >>> whole = noise.normal(step=0, name="weight", start=0, count=100)
    >>> bool((noise.normal(0, "weight", 37, 20) == whole[37:57]).all())
    True
    >>> noise
    KeyedNoise(<sealed>)
    """

    __slots__ = ("_key", "_run")

    def __init__(self, key: Key, run: str) -> None:
        self._key = key
        self._run = run

    def normal(self, step: int, name: str, start: int, count: int) -> Tensor:
        """Coordinates [start, start + count) of the noise of a flattened parameter: float32 [count], on the CPU."""
        for field, value in (("step", step), ("start", start), ("count", count)):
            if value < 0:
                raise ReleaseError(f"{field} of the noise is {value}: give a number of at least 0.")
        if count == 0:
            return torch.empty(0, dtype=torch.float32, device="cpu")
        first, last = start // 2, (start + count + 1) // 2
        pairs = torch.empty(last - first, 2, dtype=torch.float32, device="cpu")
        stream = keystream(bytes.fromhex(self._key.digest("dpsgd-noise", self._run, step, name)), first)
        blocks = pairs.split(_PAIRS_AT_ONCE)
        size = BLOCK_BYTES * len(blocks[0])  # a block makes a pair of coordinates
        zeros, buffer = bytes(size), bytearray(size)
        words = torch.frombuffer(buffer, dtype=torch.int64).view(-1, 2)
        for block in blocks:
            stream.update_into(zeros[: BLOCK_BYTES * len(block)], buffer)
            _box_muller(words[: len(block)], block)
        return pairs.view(-1)[start - 2 * first :][:count]

    def __repr__(self) -> str:
        return "KeyedNoise(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("KeyedNoise is never pickled: pass the path of the key file and make it where it is needed")


def _box_muller(words: Tensor, out: Tensor) -> None:
    """Two standard normal numbers, out [pairs, 2], for each two words."""
    bits = (words >> 11).bitwise_and_(_LOW_53_BITS)  # >> copies the sign of an int64, the mask takes it off
    radius = bits[:, 0].double().add_(1).mul_(2.0**-53).log_().mul_(-2).sqrt_()
    angle = bits[:, 1].double().mul_(math.tau * 2.0**-53)
    out[:, 0] = torch.cos(angle).mul_(radius)
    out[:, 1] = angle.sin_().mul_(radius)


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
