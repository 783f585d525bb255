"""The signature of an export: Ed25519, with a private key derived from the ledger's key.

The macs inside the book convince only those who hold the ledger's key. A signature convinces anyone who knows the
public key, which may be printed in a report: the auditor outside needs no secret. The seed of the private key is
PRF(ledger key, "ledger-signature"), so that there is no second secret to keep.
"""

import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rayprivacy.core.keys import Key

_PUBLIC, _SIGNATURE = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{128}")  # one spelling each


def public_key_of(key: Key) -> str:
    """The public key that belongs to a ledger key, as 64 hex digits."""
    return _private(key).public_key().public_bytes_raw().hex()


def sign(key: Key, message: bytes) -> str:
    """The signature of a message, as 128 hex digits."""
    return _private(key).sign(message).hex()


def is_signed(public_key: str, signature: str, message: bytes) -> bool:
    """Whether the signature is the public key's; False for what is no key or no signature."""
    if not _PUBLIC.fullmatch(public_key) or not _SIGNATURE.fullmatch(signature):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(key: Key) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.digest("ledger-signature")))
