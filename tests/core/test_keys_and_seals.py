"""The secret stays in its file, and sealed values stay sealed."""

import pickle
import stat
from pathlib import Path

import pytest

from rayprivacy.core.errors import ConfigError, KeyFileError, ShardError
from rayprivacy.core.keys import KEY_BYTES, Key, Vault, create_key, load_key, load_or_create_key
from rayprivacy.core.private import Private, Released
from rayprivacy.core.units import Budget


def test_a_key_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.key"
    key = load_or_create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == KEY_BYTES
    assert load_or_create_key(path).digest("label", "x") == key.digest("label", "x")
    with pytest.raises(KeyFileError, match="exists"):
        create_key(path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="0640"):
        load_key(path)


def test_a_short_or_missing_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.key"
    with pytest.raises(KeyFileError, match="does not exist"):
        load_key(path)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="5 bytes"):
        load_key(path)


def test_fresh_keys_differ(tmp_path: Path) -> None:
    first, second = (create_key(tmp_path / name) for name in ("a", "b"))
    assert first.digest("label") != second.digest("label")
    assert not first.is_test_key
    assert Key.for_tests().is_test_key


def test_the_prf_separates_labels_and_parts() -> None:
    key = Key.for_tests()
    values = [key.integer("shard", "ab", "c"), key.integer("shard", "a", "bc"), key.integer("shard", "abc")]
    values += [key.integer("holdout", "ab", "c"), key.integer("shard", "ab"), key.integer("shard")]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**256 for value in values)


def test_secrets_and_private_values_neither_print_nor_travel() -> None:
    key, private = Key(b"s" * KEY_BYTES), Private("secret words")
    for sealed in (key, private, Vault(key, "test")):
        assert repr(sealed) == f"{type(sealed).__name__}(<sealed>)"
        assert "s" * 8 not in repr(sealed)
        assert "words" not in f"{sealed!s} {sealed!r}"
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(sealed)
    assert private.reveal() == "secret words"


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


def test_nobody_but_the_gate_makes_released_values() -> None:
    with pytest.raises(TypeError, match="only the release gate"):
        Released(1, "release", object())


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 1e-6), (-1.0, 1e-6), (float("nan"), 1e-6), (float("inf"), 1e-6), (1.0, 0.0), (1.0, 1.0)],
)
def test_a_budget_without_meaning_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigError, match="privacy\\."):
        Budget(epsilon, delta)
