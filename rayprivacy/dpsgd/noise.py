"""Keyed Gaussian noise for DP-SGD: a function of (secret, run, step, parameter, coordinate) and of nothing else.

A step releases (sum of clipped gradients + N(0, sigma^2 C^2 I)) / B (Abadi et al., 2016). Whoever owns a coordinate of
the optimizer draws its noise, from its own place in one keyed stream. So rank, ZeRO stage and world size cannot change
the noise or draw it twice; two ranks never share noise unless they hold the same coordinate; and a step that runs again
after a crash gets the noise that it had: the released value is the same one, not a second look at the gradients.

The stream. ChaCha20 (RFC 8439, `chacha`), under a key that is the PRF of (run, step, parameter name), on the device
that the noise is for. Block j makes coordinates 8 j to 8 j + 7. Two words of it, whose upper 53 bits are the signed
numbers s1 and s2, make two coordinates by Box and Muller (1958), in float64:

    u1 = (s1 + 2^52 + 1) / 2^53 in (0, 1],   u2 = s2 / 2^53 in [-1/2, 1/2),   z = sqrt(-2 ln u1) * (cos, sin)(2 pi u2)

Why ChaCha20, and not torch's random numbers? Noise hides the gradients only as long as it cannot be computed by others.
On a CPU torch keeps 32 bits of its seed, so that 2^32 trials find the noise; unseeded, it starts from a public
constant. On a GPU it has Philox, which is not made to withstand an attack. Why float64? With angles of 24 bits, as
float32 has them, pairs of coordinates would lie on rays that are wider apart than neighbouring numbers.

**The noise is as secret as the key file.** Whoever holds it can subtract it, and has the bare sum of gradients. It is
never logged, saved, or sent to another rank; the object that draws it prints as sealed and refuses to be pickled.

What is not exact: the values are float32, not the discrete Gaussian of release/noise.py, and they end at 8.58, where a
Gaussian has a tail of 1e-17. Accounting treats them as a continuous Gaussian, as for every DP-SGD on floating-point
hardware. One device reproduces all of it, in any pieces and by any number of threads. Another one, or a processor with
other vector units, has the same words, and differs in the last bits of logarithm, sine and cosine: less than one value
in 10^7 is then the float32 next to it (numpy's functions change none of 33 million). A CPU draws for sums on a CPU,
under ZeRO with offload too, and a GPU for its own.

Noise may be *correlated* over steps: row t of C^-1 z, where z is keyed noise and C a banded Toeplitz matrix.

    w_t = (z_t - c_1 w_(t-1) - ... - c_(b-1) w_(t-b+1)) / c_0          (`release.step_mechanism` says why)

Like z, it is a function of (secret, run, step, parameter, coordinate) and of nothing else. The last b - 1 values of
what a rank owns are kept in the memory of the device that drew them, and only there: on a disk they would be noise that
somebody could take off the model. After a restart, or where another rank takes over, they are computed again from z,
from step 0 on, bit for bit: every operation is on one coordinate by itself and is rounded by itself, in whatever pieces
it is done. A state that was saved under another stream is refused: its noise would not be what this one takes back.

It costs 4 (b - 1) bytes for each coordinate, and as many multiplications and subtractions.
"""

import math
from collections import deque
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import chacha
from rayprivacy.models.features import side_by_side

_EACH = chacha.WORDS  # coordinates that a block makes
_ROUNDED_TO = 8  # blocks: draws are whole vectors of any processor, so none computes some coordinates in another way
# Blocks at once. On a CPU a thread's 1.5 MB of scratch stay in its cache; elsewhere 200 MB bound what a draw takes.
_ON_CPU, _ELSEWHERE = 1 << 13, 1 << 19
_CPU = torch.device("cpu")
STREAM = "ChaCha20"  # what a saved state says of the noise in it
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

    def normal(self, step: int, name: str, start: int, count: int, device: torch.device = _CPU) -> Tensor:
        """Coordinates [start, start + count) of the noise of a flattened parameter: float32 [count], on the device.

        A CPU draws on all threads that torch has.
        """
        for field, value in (("step", step), ("start", start), ("count", count)):
            if value < 0:
                raise ReleaseError(f"{field} of the noise is {value}: give a number of at least 0.")
        secret = bytes.fromhex(self._key.digest("dpsgd-noise", self._run, step, name))
        whole = _EACH * _ROUNDED_TO
        first, last = start // whole * _ROUNDED_TO, -(-(start + count) // whole) * _ROUNDED_TO
        drawn = torch.empty(last - first, _EACH, dtype=torch.float32, device=device)
        size, threads = (_ON_CPU, torch.get_num_threads()) if device.type == "cpu" else (_ELSEWHERE, 1)
        places = range(0, len(drawn), size)
        shares = [places[each::threads] for each in range(min(threads, len(places)))]
        side_by_side(partial(_draw, secret, first, drawn, size), shares, len(shares) or 1)
        return drawn.view(-1)[start - _EACH * first :][:count]

    def __repr__(self) -> str:
        return "KeyedNoise(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("KeyedNoise is never pickled: pass the path of the key file and make it where it is needed")


def _draw(secret: bytes, first: int, drawn: Tensor, size: int, places: range) -> None:
    """Draw the pieces of some size at these places, of blocks that begin with `first`, in one scratch for all."""
    blocks = min(len(drawn), size)
    words = torch.empty(blocks, chacha.WORDS, dtype=torch.int64, device=drawn.device)
    scratch = torch.empty(3, blocks * _EACH // 2, dtype=torch.float64, device=drawn.device)
    for at in places:
        piece = drawn[at : at + blocks]
        chacha.fill(secret, first + at, words[: len(piece)])
        _box_muller(words[: len(piece)].view(-1, 2), piece.view(-1, 2), scratch)


def _box_muller(words: Tensor, out: Tensor, scratch: Tensor) -> None:
    """Two standard normal numbers, out [pairs, 2], for each two words, which are used up."""
    radius, angle, cosine = scratch[:, : len(words)]
    first, second = words.bitwise_right_shift_(11).T
    radius.copy_(first).add_(2**52 + 1).mul_(2.0**-53).log_().mul_(-2).sqrt_()
    angle.copy_(second).mul_(math.tau * 2.0**-53)
    torch.cos(angle, out=cosine)
    out[:, 0] = cosine.mul_(radius)
    out[:, 1] = angle.sin_().mul_(radius)


class CorrelatedNoise:
    """Row after row of C^-1 z for one training run; prints as sealed and refuses to be pickled.

    z is `noise`, and `strategy` is c_0, ..., c_(b-1); (1.0,) leaves z as it is.
    """

    __slots__ = ("_noise", "_past", "_strategy")

    def __init__(self, noise: KeyedNoise, strategy: tuple[float, ...]) -> None:
        self._noise, self._strategy = noise, strategy
        self._past: dict[tuple[str, int, int, torch.device], _Past] = {}

    def normal(self, step: int, name: str, start: int, count: int, device: torch.device = _CPU) -> Tensor:
        """Coordinates [start, start + count) of the noise of a flattened parameter: float32 [count], on the device.

        Read it, and change nothing in it: the noise of later steps is made of it.
        """
        if self._strategy == (1.0,):
            return self._noise.normal(step, name, start, count, device)
        past = self._past.setdefault((name, start, count, device), _Past(max(1, len(self._strategy) - 1)))
        if step < past.steps:  # a saved state was loaded
            past.values.clear()
            past.steps = 0
        for each in range(past.steps, step + 1):
            past.values.append(_row(self._noise.normal(each, name, start, count, device), past.values, self._strategy))
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
    at_once = _AT_ONCE if drawn.device.type == "cpu" else _EACH * _ELSEWHERE
    for at in range(0, len(drawn), at_once):
        row = drawn[at : at + at_once]
        for coefficient, earlier in zip(later, reversed(past), strict=False):
            # Two operations, each rounded: fused ones would round otherwise at the edges of vectors.
            row.sub_(earlier[at : at + at_once] * coefficient)
        row.div_(first)
    return drawn
