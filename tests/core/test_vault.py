"""Encryption at rest: a vault decrypts what it encrypted, under its own key, purpose and context."""

import pickle

import pytest

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key, Vault


def test_a_vault_decrypts_what_it_encrypted_and_nothing_else() -> None:
    vault = Vault(Key.for_tests(), "test")
    data = vault.encrypt(b"states", "one")
    assert vault.decrypt(data, "one") == b"states"
    assert vault.encrypt(b"states", "one") != data
    others = (Vault(Key.for_tests(), "else"), Vault(Key(b"k" * 32), "test"))
    for opener, found, context in (
        *((other, data, "one") for other in others),
        (vault, data, "two"),
        (vault, data[:-1], "one"),
        (vault, b"", "one"),
    ):
        with pytest.raises(ShardError, match="--resume") as caught:
            opener.decrypt(found, context)
        assert caught.value.__context__ is None
    assert repr(vault) == "Vault(<sealed>)"
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(vault)
