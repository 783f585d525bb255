"""The secret stays in its file, sealed values stay sealed, and files are for their owner whatever the umask is."""

import os
import pickle
import stat

import numpy as np
import pyarrow as pa
import pytest
import torch
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from rayprivacy.core.errors import ConfigError, KeyFileError, ReleaseError, ShardError
from rayprivacy.core.files import SHARED, append_line, private_directory, write_atomic, write_json
from rayprivacy.core.keys import KEY_BYTES, Key, Vault, create_key, load_key, load_or_create_key
from rayprivacy.core.private import Private, Seal
from rayprivacy.core.units import Budget
from rayprivacy.work.mapping import told


def test_a_key_file_is_whole_and_for_its_owner_only(tmp_path):
    path = tmp_path / "folder" / "run.key"
    with pytest.raises(KeyFileError, match="does not exist"):
        load_key(path)
    key = load_or_create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == KEY_BYTES
    assert load_or_create_key(path).digest("label", "x") == key.digest("label", "x")
    with pytest.raises(KeyFileError, match="exists"):
        create_key(path)
    path.write_bytes(b"short")
    with pytest.raises(KeyFileError, match="5 bytes"):
        load_key(path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="0640"):
        load_key(path)


def test_fresh_keys_differ(tmp_path):
    first, second = (create_key(tmp_path / name) for name in ("a", "b"))
    assert first.digest("label") != second.digest("label")
    assert not first.is_test_key
    assert Key.for_tests().is_test_key


def test_the_prf_separates_labels_and_parts():
    key = Key.for_tests()
    values = [key.integer("shard", "ab", "c"), key.integer("shard", "a", "bc"), key.integer("shard", "abc")]
    values += [key.integer("holdout", "ab", "c"), key.integer("shard", "ab"), key.integer("shard")]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**256 for value in values)


def test_secrets_and_private_values_neither_print_nor_travel():
    key, private = Key(b"s" * KEY_BYTES), Private("secret words")
    for sealed in (key, private, Vault(key, "test")):
        assert repr(sealed) == f"{type(sealed).__name__}(<sealed>)"
        assert "s" * 8 not in repr(sealed)
        assert "words" not in f"{sealed!s} {sealed!r}"
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(sealed)
    assert private.reveal() == "secret words"


def test_a_vault_decrypts_what_it_encrypted_and_nothing_else():
    vault = Vault(Key.for_tests(), "test")
    data = vault.encrypt(b"states", "one")
    assert vault.decrypt(data, "one") == b"states"
    assert vault.encrypt(b"states", "one") != data
    others = (Vault(Key.for_tests(), "else"), Vault(Key(b"k" * 32), "test"))
    damaged = ((vault, data, "two"), (vault, data[:-1], "one"), (vault, b"", "one"))
    for opener, found, context in (*((other, data, "one") for other in others), *damaged):
        with pytest.raises(ShardError, match="--resume") as caught:
            opener.decrypt(found, context)
        assert caught.value.__context__ is None


def test_a_budget_without_meaning_is_refused():
    wrong = [(epsilon, 1e-6) for epsilon in (0.0, -1.0, float("nan"), float("inf"))]
    for epsilon, delta in (*wrong, (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigError, match="privacy\\."):
            Budget(epsilon, delta)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_whatever_is_written_is_for_its_owner(tmp_path):
    folder = private_directory(tmp_path / "run" / "private")
    (folder / "json").write_text("{}")
    (folder / "json").chmod(0o644)  # as files of an older version have it
    write_atomic(folder / "bytes", b"x")
    write_json(folder / "json", {})
    for line in ("one", "two"):
        append_line(folder / "log", line)
    assert (folder / "log").read_text() == "one\ntwo\n"
    assert _mode(folder) == 0o700
    assert {_mode(path) for path in folder.iterdir()} == {0o600}


def test_what_is_made_to_be_shared_can_be_read_by_whom_the_umask_lets(umask, tmp_path):
    write_atomic(tmp_path / "certificate.json", b"{}", SHARED)
    assert _mode(tmp_path / "certificate.json") == 0o644 & ~umask


def _wrapped(error):
    """What the driver sees of what ended a worker: itself, from a task of Ray's, and from Ray Train."""
    lost = WorkerHealthCheckFailedError("ann said hi", failure=error)
    yield from (
        error,
        RayTaskError("run", "ann said hi", error),
        WorkerGroupError("ann said hi", {0: OSError(), 1: lost}),
    )


def _fail(error):
    raise error


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.empty(10**15),
        lambda: np.empty(10**15),
        lambda: pa.allocate_buffer(10**17),
        lambda: bytearray(10**16),
        lambda: _fail(OutOfMemoryError("ann said hi")),
        lambda: _fail(torch.OutOfMemoryError("CUDA out of memory")),
    ],
)
def test_want_of_memory_is_said_whoever_says_it_and_nothing_else_is_taken_for_it(ask):
    seal = Seal(ReleaseError, "run again with --resume")
    with pytest.raises((MemoryError, RuntimeError, RayError)) as starved:
        ask()
    for error in _wrapped(starved.value):
        said = seal.unwrap("training", error)
        assert str(said).startswith("training was ended for want of memory: lower resources.batch_tokens")
        assert isinstance(said, ReleaseError)
        assert "ann" not in str(said)
        if isinstance(error, RayError):
            assert "want of memory" in str(told("voting", error, seal))
    for other in (ValueError("OutOfMemoryError"), RuntimeError("CUDA out of memory"), KeyError("MemoryError")):
        assert all("its text is withheld" in str(seal.unwrap("training", error)) for error in _wrapped(other))


def test_a_sealed_function_says_that_it_had_no_memory():
    with pytest.raises(ReleaseError, match=r"^reading was ended for want of memory"):
        Seal(ReleaseError, "try again").around("reading")(bytearray)(10**16)


def test_a_file_is_written_of_bytes_a_buffer_or_pieces_and_never_in_part(tmp_path):
    sink = pa.BufferOutputStream()
    sink.write(b"whole")
    for number, data in enumerate((b"whole", sink.getvalue(), iter([b"who", b"le"]))):
        write_atomic(tmp_path / str(number), data)
        assert (tmp_path / str(number)).read_bytes() == b"whole"

    def broken():
        yield b"half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomic(tmp_path / "0", broken())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    assert (tmp_path / "0").read_bytes() == b"whole"
