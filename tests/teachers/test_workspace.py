"""A part counts as finished only when it is whole, untouched and made from this very input."""

import json
import stat
from pathlib import Path

import pytest
import torch

from rayprivacy.core.errors import ShardError
from rayprivacy.teachers.workspace import Workspace

STATE = {
    "matrix": torch.arange(3 * 2 * 2, dtype=torch.float32).view(3, 2, 2),
    "up": torch.ones(3, 4, 5).transpose(1, 2),
    "filled": torch.tensor([True, False, True]),
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    found = Workspace(tmp_path / "teachers", "recipe-digest")
    found.prepare()
    return found


@pytest.fixture
def shard_file(tmp_path: Path) -> Path:
    path = tmp_path / "part-00002.parquet"
    path.write_bytes(b"rows of a shard")
    return path


def _write(workspace: Workspace, shard_file: Path) -> str:
    source = workspace.input_digest(shard_file)
    workspace.write(2, source, STATE)
    return source


def test_what_was_written_is_finished_and_comes_back(workspace: Workspace, shard_file: Path) -> None:
    source = workspace.input_digest(shard_file)
    assert not workspace.finished(2, source)
    _write(workspace, shard_file)
    assert workspace.finished(2, source)
    assert not workspace.finished(1, source)
    found = workspace.read(2)
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("place", [8, -1])
def test_a_tampered_file_is_not_finished(workspace: Workspace, shard_file: Path, place: int) -> None:
    source = _write(workspace, shard_file)
    path = workspace.root / "part-00002.teachers.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    assert not workspace.finished(2, source)


def test_a_truncated_file_is_not_finished(workspace: Workspace, shard_file: Path) -> None:
    source = _write(workspace, shard_file)
    path = workspace.root / "part-00002.teachers.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    assert not workspace.finished(2, source)


@pytest.mark.parametrize("suffix", ["teachers.safetensors", "done"])
def test_a_missing_file_is_not_finished(workspace: Workspace, shard_file: Path, suffix: str) -> None:
    source = _write(workspace, shard_file)
    (workspace.root / f"part-00002.{suffix}").unlink()
    assert not workspace.finished(2, source)


def test_another_recipe_or_another_shard_is_not_finished(workspace: Workspace, shard_file: Path) -> None:
    _write(workspace, shard_file)
    other = Workspace(workspace.root, "another recipe")
    assert not other.finished(2, other.input_digest(shard_file))
    shard_file.write_bytes(b"rows of a shard and one user more")
    assert not workspace.finished(2, workspace.input_digest(shard_file))


def test_a_write_cut_short_over_an_older_part_is_not_finished(
    workspace: Workspace, shard_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _write(workspace, shard_file)

    def killed(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rayprivacy.teachers.workspace.write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        workspace.write(2, "new input", {"matrix": STATE["matrix"] + 1})
    assert not workspace.finished(2, source)
    assert not workspace.finished(2, "new input")


def test_everything_is_for_the_owner_only_and_no_scratch_stays(workspace: Workspace, shard_file: Path) -> None:
    _write(workspace, shard_file)
    assert stat.S_IMODE(workspace.root.stat().st_mode) == 0o700
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in workspace.root.iterdir()}
    files = ("teachers.safetensors", "done")
    assert names == {f"part-00002.{suffix}": 0o600 for suffix in files}


def test_an_open_folder_is_closed(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    Workspace(tmp_path / "open", "r").prepare()
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o700


def test_the_marker_holds_digests_and_nothing_else(workspace: Workspace, shard_file: Path) -> None:
    _write(workspace, shard_file)
    marker = json.loads((workspace.root / "part-00002.done").read_text())
    assert set(marker) == {"source", "teachers"}
    assert all(len(value) == 64 and int(value, 16) >= 0 for value in marker.values())


def test_a_part_that_is_not_there_is_one_sentence(workspace: Workspace) -> None:
    with pytest.raises(ShardError, match=r"^part 7 of the teachers is not on disk: .*\.$"):
        workspace.read(7)
