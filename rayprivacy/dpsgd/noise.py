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
"""

import math
from typing import NoReturn

import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from torch import Tensor

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.streams import BLOCK_BYTES, keystream

# Scratch of 1.5 MB stays in the processor's cache, and is too small for torch to split it between threads.
_PAIRS_AT_ONCE = 1 << 14
_LOW_53_BITS = (1 << 53) - 1


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
        """Coordinates [start, start + count) of the noise of a flattened parameter: float32 [count], on the CPU.

        Raises:
            ReleaseError: step, start or count is negative.
        """
        for field, value in (("step", step), ("start", start), ("count", count)):
            if value < 0:
                raise ReleaseError(f"{field} of the noise is {value}: give a number of at least 0.")
        if count == 0:
            return torch.empty(0, dtype=torch.float32, device="cpu")
        first, last = start // 2, (start + count + 1) // 2
        pairs = torch.empty(last - first, 2, dtype=torch.float32, device="cpu")
        blocks, stream = pairs.split(_PAIRS_AT_ONCE), self._stream(step, name, first)
        size = BLOCK_BYTES * len(blocks[0])  # a block makes a pair of coordinates
        zeros, buffer = bytes(size), bytearray(size)
        words = torch.frombuffer(buffer, dtype=torch.int64).view(-1, 2)
        for block in blocks:
            stream.update_into(zeros[: BLOCK_BYTES * len(block)], buffer)
            _box_muller(words[: len(block)], block)
        return pairs.view(-1)[start - 2 * first :][:count]

    def _stream(self, step: int, name: str, first: int) -> CipherContext:
        """The keystream from AES block `first` on: what zeros are encrypted to."""
        return keystream(bytes.fromhex(self._key.digest("dpsgd-noise", self._run, step, name)), first)

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
