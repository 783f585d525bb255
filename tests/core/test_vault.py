"""Encryption at rest: a vault opens what it sealed, under its own key, purpose and context."""

import pickle

import pytest

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.vault import Vault


def test_a_vault_opens_what_it_sealed_and_nothing_else() -> None:
    vault = Vault(Key.for_tests(), "test")
    sealed = vault.seal(b"states", "one")
    assert vault.open(sealed, "one") == b"states"
    assert vault.seal(b"states", "one") != sealed
    others = (Vault(Key.for_tests(), "else"), Vault(Key(b"k" * 32), "test"))
    for opener, data, context in (
        *((other, sealed, "one") for other in others),
        (vault, sealed, "two"),
        (vault, sealed[:-1], "one"),
        (vault, b"", "one"),
    ):
        with pytest.raises(ShardError, match="--resume") as caught:
            opener.open(data, context)
        assert caught.value.__context__ is None
    assert repr(vault) == "Vault(<sealed>)"
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(vault)
