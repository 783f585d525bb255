"""A teacher counts as finished only when its file is whole and it was trained from this very input."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import Journal
from rayprivacy.teachers import workspace as workspace_module
from rayprivacy.teachers.workspace import Workspace

STATE = {
    "matrix": torch.arange(3 * 2 * 2, dtype=torch.float32).view(3, 2, 2),
    "up": torch.ones(3, 4, 5).transpose(1, 2),
    "filled": torch.tensor([True, False, True]),
}
TEACHERS = [6, 7, 9]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    found = Workspace(tmp_path / "teachers", "recipe-digest")
    found.prepare()
    return found


def sources(workspace: Workspace, *groups: str) -> dict[int, str]:
    return {teacher: workspace.source([*groups, str(teacher)]) for teacher in TEACHERS}


def written(workspace: Workspace, *groups: str, plus: float = 0.0) -> dict[int, str]:
    found = sources(workspace, *groups)
    workspace.write(found, {**STATE, "matrix": STATE["matrix"] + plus})
    return found


def forget() -> None:
    """What a fresh process knows."""
    workspace_module._known.cache_clear()


def test_what_was_written_is_finished_and_comes_back(workspace: Workspace) -> None:
    assert workspace.missing(sources(workspace)) == TEACHERS
    known = written(workspace)
    for _ in range(2):
        assert workspace.missing(known) == []
        assert workspace.missing({8: "source"}) == [8]
        for order in (TEACHERS, [9, 6], [7]):
            found, rows = workspace.read(order), [TEACHERS.index(teacher) for teacher in order]
            assert found.keys() == STATE.keys()
            assert all(torch.equal(found[name], STATE[name][rows]) for name in STATE)
        forget()


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("damage", [8, -1, "cut short", "gone"])
def test_a_damaged_file_is_not_finished_and_not_read(workspace: Workspace, damage: int | str, fresh: bool) -> None:
    known, (path,) = written(workspace), workspace.root.glob("*.safetensors")
    workspace.read(TEACHERS)
    if fresh:
        forget()
    data = bytearray(path.read_bytes())
    if isinstance(damage, int):
        data[damage] ^= 1
    path.write_bytes(bytes(data[:-4] if damage == "cut short" else data))
    if damage == "gone":
        path.unlink()
    said = r"^(teacher 6 is not on disk|the file of teacher 6 is damaged): .*--resume\.$"
    with pytest.raises(ShardError, match=said):
        workspace.read(TEACHERS)
    assert workspace.missing(known) == TEACHERS
    written(workspace)
    assert workspace.missing(known) == []
    assert torch.equal(workspace.read(TEACHERS)["matrix"], STATE["matrix"])


def test_another_recipe_or_another_shard_is_not_finished(workspace: Workspace) -> None:
    known = written(workspace, "a group")
    assert Workspace(workspace.root, "another recipe").missing(sources(workspace, "a group")) == []
    assert Workspace(workspace.root, "another recipe").source(["a"]) != workspace.source(["a"])
    assert workspace.missing(sources(workspace, "a group", "and one more")) == TEACHERS
    assert workspace.missing(known) == []


@pytest.mark.parametrize("fresh", [True, False])
def test_of_two_trainings_the_later_one_counts_whatever_the_names_of_files(workspace: Workspace, fresh: bool) -> None:
    for plus in range(1, 6):
        known = written(workspace, f"corpus {plus}", plus=plus)
        if fresh:
            forget()
        assert workspace.missing(known) == []
        assert torch.equal(workspace.read([7])["matrix"], STATE["matrix"][1:2] + plus)
    workspace.write({7: "anew"}, {name: tensor[:1] for name, tensor in STATE.items()})
    assert workspace.missing({**known, 7: "anew"}) == []
    assert workspace.read([6, 7])["matrix"][1].equal(STATE["matrix"][0])
    workspace.prepare()
    assert len(list(workspace.root.glob("*.safetensors"))) == 2, "files that no teacher is read from are gone"
    assert workspace.missing({**known, 7: "anew"}) == []


def test_a_write_cut_short_over_an_older_training_is_not_finished(workspace: Workspace, monkeypatch: Any) -> None:
    known = written(workspace)

    def killed(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            written(workspace, "new input", plus=1)
    assert workspace.missing(sources(workspace, "new input")) == TEACHERS
    assert workspace.missing(known) == []
    (workspace.root / ".abc.safetensors.17").touch()
    workspace.prepare()
    assert [path.name for path in workspace.root.iterdir() if path.name.startswith(".")] == []
    assert torch.equal(workspace.read(TEACHERS)["matrix"], STATE["matrix"])


def test_everything_is_for_the_owner_only_and_holds_digests(workspace: Workspace) -> None:
    written(workspace, "a private text")
    assert stat.S_IMODE(workspace.root.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in workspace.root.iterdir()} == {0o600}
    (table,) = workspace.root.glob("*.jsonl")
    (line,) = table.read_text().splitlines()
    assert set(json.loads(line)) == {"file", "sha256", "version", "teachers"}
    assert "private" not in line
    workspace.root.chmod(0o755)
    workspace.prepare()
    assert stat.S_IMODE(workspace.root.stat().st_mode) == 0o700, "an open folder is closed"
    with pytest.raises(ShardError, match=r"^teacher 8 is not on disk: run again with --resume\.$"):
        workspace.read([8])
