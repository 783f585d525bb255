"""Encryption at rest: AES-256-GCM under a key derived from the run's secret."""

import os
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key

NONCE_BYTES = 12


class Vault:
    """Encrypts bytes for one purpose; prints without its key and refuses to be pickled.

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
