"""The run's secret and everything keyed by it: a pseudo-random function, streams of random bits, encryption at rest.

A 256-bit secret from the operating system decides which shard a user falls into and names digests of private data.
It lives in a file of mode 0600 and travels as a PATH: never in a config value, a log, a checkpoint or a Ray argument.
PRF(secret, label, parts...) is keyed BLAKE2b over length-prefixed parts, so that ("ab", "c") and ("a", "bc") differ.

Random bits are AES-256, or the stream of ChaCha20, under a secret of 32 bytes, of which no two uses are the same: with
the secret they can be computed again, and without it they cannot be told from random ones.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rayprivacy.core.errors import KeyFileError, ShardError
from rayprivacy.core.files import at_home

KEY_BYTES = 32
TEST_SECRET = b"rayprivacy: a test key, no secret"[:KEY_BYTES]


class Key:
    """A 256-bit secret; prints as sealed and refuses to be pickled.

    >>> key = Key.for_tests()
    >>> key.integer("shard", "user-1") == key.integer("shard", "user-1")
    True
    >>> key
    Key(<sealed>)
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise KeyFileError(f"the key has {len(secret)} bytes: a key file holds exactly {KEY_BYTES}.")
        self._secret = secret

    @classmethod
    def for_tests(cls) -> "Key":
        """The fixed, public key; whatever is released under it is marked 'not private: test key'."""
        return cls(TEST_SECRET)

    @property
    def is_test_key(self) -> bool:
        """Whether this is the fixed public key of the tests."""
        return self._secret == TEST_SECRET

    def digest(self, label: str, *parts: str | bytes | int) -> str:
        """PRF as 64 hex digits: names private content without revealing a checkable hash of it."""
        return self._state((label, *parts)).hexdigest()

    def integer(self, label: str, *parts: str | bytes | int) -> int:
        """PRF as an integer uniform on [0, 2^256); `% m` is uniform up to m / 2^256."""
        return int.from_bytes(self._state((label, *parts)).digest(), "big")

    def digests(self, label: str, messages: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        """PRF of many inputs under one label, 32 bytes each.

        A message has the parts of its input framed: each behind its length as 8 bytes, the highest first.

        >>> key = Key.for_tests()
        >>> message = (2).to_bytes(8, "big") + b"me"
        >>> [digest.hex() for digest in key.digests("shard", [message])] == [key.digest("shard", "me")]
        True
        """
        start = self._state((label,))  # hashed once; a copy costs less than to begin anew
        for message in messages:
            state = start.copy()
            state.update(message)
            yield state.digest()

    def _state(self, parts: tuple[str | bytes | int, ...]) -> "hashlib.blake2b":
        state = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            state.update(len(data).to_bytes(8, "big") + data)
        return state

    def __repr__(self) -> str:
        return "Key(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key is never pickled: pass the path of its file and load it where it is needed")


def create_key(path: Path) -> Key:
    """Write a fresh secret to `path` with mode 0600; KeyFileError where there is a file, or none can be made."""
    path = at_home(path)
    secret = os.urandom(KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise KeyFileError(f"the key file {path} exists: load it, or choose another path.") from None
    except OSError as error:
        raise KeyFileError(
            f"the key file {path} cannot be made ({error.strerror}): let privacy.key name a place that is yours to"
            " write."
        ) from None
    return Key(secret)


def load_key(path: Path) -> Key:
    """Read the secret; KeyFileError if the file is missing, unreadable, open to others, or not 32 bytes long."""
    path = at_home(path)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        secret = path.read_bytes()
    except FileNotFoundError:
        raise KeyFileError(f"the key file {path} does not exist: create one, or correct privacy.key.") from None
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or "no path"
        raise KeyFileError(f"the key file cannot be read ({reason}): give the path of a file of 32 bytes.") from None
    if mode & 0o077:
        raise KeyFileError(f"the key file {path} has mode {mode:04o}: run chmod 600 on it, and consider it seen.")
    return Key(secret)


def load_or_create_key(path: Path) -> Key:
    """Load the key at `path`, or create it when there is none."""
    return load_key(path) if os.path.exists(at_home(path)) else create_key(path)


BLOCK_BYTES = 16


def words_of(secret: bytes, blocks: bytes) -> npt.NDArray[np.uint64]:
    """Two uniform 64-bit numbers for each of distinct 16-byte blocks, [blocks, 2], from the secret and the block alone:
    independent up to the gap between a pseudo-random permutation and a function, n^2 / 2^129 for n blocks.
    """
    cipher = Cipher(algorithms.AES(secret), modes.ECB())  # noqa: S305 - a PRF of distinct blocks, nothing is encrypted
    return np.frombuffer(cipher.encryptor().update(blocks), dtype=">u8").reshape(-1, 2).astype(np.uint64)


STREAM_BLOCK_BYTES = 64
STREAM_BLOCKS = 1 << 32  # the counter has 32 bits


def keystream(secret: bytes, first: int) -> CipherContext:
    """The stream of ChaCha20 (RFC 8439) from its block `first` on: what zeros are encrypted to.

    A block's number is its counter, in 32 bits, and above them its nonce. Behind the last counter no more is given.
    """
    return Cipher(algorithms.ChaCha20(secret, first.to_bytes(16, "little")), mode=None).encryptor()


NONCE_BYTES = 12


class Vault:
    """Encrypts bytes for one purpose (AES-256-GCM); prints without its key and refuses to be pickled.

    Every call draws a fresh nonce and puts it in front. The context (a file's name) is authenticated and not stored, so
    that one file cannot stand in for another.

    >>> vault = Vault(Key.for_tests(), "doctest")
    >>> vault.decrypt(vault.encrypt(b"states", "file 1"), "file 1")
    b'states'
    """

    __slots__ = ("_cipher",)

    def __init__(self, key: Key, purpose: str) -> None:
        # The PRF's 256 bits are an AES key of their own: they tell nothing about the secret or other purposes.
        self._cipher = AESGCM(bytes.fromhex(key.digest("vault", purpose)))

    def encrypt(self, data: bytes, context: str) -> bytes:
        """A fresh nonce, and the data encrypted."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, context.encode())

    def decrypt(self, data: bytes, context: str) -> bytes:
        """The data again; ShardError if it was changed, or belongs to another key, purpose or context."""
        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError):  # too short a nonce is a ValueError
            pass
        raise ShardError("an encrypted file was changed, or belongs to another key: delete it, and run with --resume.")

    def __repr__(self) -> str:
        return "Vault(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Vault is never pickled: pass the path of the key file and make it where it is needed")
