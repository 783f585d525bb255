"""Keyed streams of random bits: AES-256 under a secret of 32 bytes, of which no two uses are the same.

Whoever has the secret can compute the bits again, and nobody else can tell them from random ones. Two forms:

- `words_of` gives each of many distinct 16-byte blocks two uniform 64-bit numbers of its own, which depend on the
  secret and that block alone. Distinct blocks have distinct images, so numbers of n blocks are independent up to the
  gap between a pseudo-random permutation and a function, n^2 / 2^129.
- `keystream` is a stream that can be read from any of its blocks on (counter mode).
"""

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

BLOCK_BYTES = 16


def words_of(secret: bytes, blocks: bytes) -> npt.NDArray[np.uint64]:
    """Two uniform 64-bit numbers for each of distinct 16-byte blocks that lie one behind the other, [blocks, 2]."""
    cipher = Cipher(algorithms.AES(secret), modes.ECB())  # noqa: S305 - a PRF of distinct blocks, nothing is encrypted
    return np.frombuffer(cipher.encryptor().update(blocks), dtype=">u8").reshape(-1, 2).astype(np.uint64)


def keystream(secret: bytes, first: int) -> CipherContext:
    """The stream from its 16-byte block `first` on: what zeros are encrypted to."""
    return Cipher(algorithms.AES(secret), modes.CTR(first.to_bytes(BLOCK_BYTES, "big"))).encryptor()
