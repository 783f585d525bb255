"""Files are for their owner alone whatever the umask is, unless they are made to be shared."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayprivacy.core.files import SHARED, append_line, private_directory, write_atomic, write_json


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_whatever_is_written_is_for_its_owner(tmp_path: Path) -> None:
    folder = private_directory(tmp_path / "run" / "private")
    write_atomic(folder / "bytes", b"x")
    write_json(folder / "json", {})
    append_line(folder / "log", "one")
    append_line(folder / "log", "two")
    assert (folder / "log").read_text() == "one\ntwo\n"
    assert _mode(folder) == 0o700
    assert {_mode(path) for path in folder.iterdir()} == {0o600}


def test_what_is_made_to_be_shared_can_be_read_by_whom_the_umask_lets(umask: int, tmp_path: Path) -> None:
    write_atomic(tmp_path / "certificate.json", b"{}", SHARED)
    assert _mode(tmp_path / "certificate.json") == 0o644 & ~umask


@pytest.mark.usefixtures("umask")
def test_writing_again_takes_the_permissions_of_others_away(tmp_path: Path) -> None:
    """As files of an older version have them."""
    path = tmp_path / "metrics.json"
    path.write_text("{}")
    path.chmod(0o644)
    write_json(path, {})
    assert _mode(path) == 0o600
