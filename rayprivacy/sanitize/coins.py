"""Keyed coins of words: a function of (secret, release, document, position, attempt) and of nothing else.

The privacy of a sanitised word rests on a draw that cannot be predicted and is seen once. If a retry, a resumed run
or another machine drew anew, a reader of both texts could average the noise away. So a draw is two 64-bit numbers of an
AES stream (`core.streams`) under a key made of the secret and of what names the release: its account, the digest of
its inputs, and its release id, which together cover the corpus, the recipe and the mechanism. Another recipe or another
corpus has other coins, and a charge of its own: two draws from one coin would be worth more than two charges. Within a
release every block of 16 bytes is another word:

    64-bit tag of the document | 32-bit position in it | 32-bit attempt and purpose

Equal texts of two users have different tags, hence independent coins. Tags are keyed digests; that any two of n
documents share one has probability n^2 / 2^65.
"""

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from rayprivacy.core.keys import Key
from rayprivacy.core.streams import words_of

Tags = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
PURPOSES = WORD, KEEP, ENTITY = range(3)
_MOST_ATTEMPTS = 2**28


class Coins:
    """The coins of one release, named by account, release id and input digest; prints as sealed, is not pickled."""

    __slots__ = ("_key", "_release", "_secret")

    def __init__(self, key: Key, *release: str) -> None:
        self._key, self._release = key, release
        self._secret = bytes.fromhex(key.digest("sanitize-coins", *release))

    def tag(self, *parts: str | int) -> int:
        """The 64-bit tag of a document, from what identifies it."""
        return self._key.integer("sanitize-document", *self._release, *parts) >> 192

    def words(self, purpose: int, tags: Tags, positions: Positions, attempt: int = 0) -> Words:
        """Two uniform 64-bit numbers for each word of a document, [words, 2].

        Args:
            purpose: one of `PURPOSES`; each has numbers of its own.
            tags: of the documents, [words].
            positions: of the words in them, [words].
            attempt: how often a draw was rejected before.
        """
        assert attempt < _MOST_ATTEMPTS, "a draw is rejected with a probability below 2^-11"
        blocks = np.empty((len(tags), 2), dtype=">u8")
        blocks[:, 0] = tags
        blocks[:, 1] = positions.astype(np.uint64) << np.uint64(32)
        blocks[:, 1] |= np.uint64(attempt * len(PURPOSES) + purpose)
        return words_of(self._secret, blocks.tobytes())

    def __repr__(self) -> str:
        return "Coins(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Coins are never pickled: pass the path of the key file and make them where they are needed")


def below(coins: Coins, purpose: int, tags: Tags, positions: Positions, limits: Words) -> Words:
    """Uniform whole numbers in [0, limit) for each word, exactly: a draw beyond a whole multiple is rejected.

    Purpose, tags and positions are those of `Coins.words`; limits are above 0, [words].
    """
    drawn = np.zeros(len(tags), dtype=np.uint64)
    # 2^64 mod limit, without leaving 64 bits: draws at or above 2^64 minus it are rejected.
    spare = (np.uint64(0) - limits) % limits
    open_, attempt = np.arange(len(tags)), 0
    while len(open_):
        found = coins.words(purpose, tags[open_], positions[open_], attempt)[:, 0]
        taken = found <= np.uint64(2**64 - 1) - spare[open_]
        drawn[open_[taken]] = found[taken] % limits[open_[taken]]
        open_, attempt = open_[~taken], attempt + 1
    return drawn
