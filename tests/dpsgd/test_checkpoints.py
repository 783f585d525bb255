"""Saved states appear whole, the newest one counts, and older ones go."""

from pathlib import Path

import pytest

from rayprivacy.core.errors import ReleaseError
from rayprivacy.dpsgd import checkpoints

INPUTS = "keyed digest of a corpus"


def _save(folder: Path, steps: int) -> None:
    (checkpoints.scratch(folder) / "rank.bin").write_text(str(steps))
    checkpoints.publish(folder, steps, f"head-{steps}", INPUTS)


def test_the_newest_state_is_found_and_the_older_one_deleted(tmp_path: Path) -> None:
    assert checkpoints.latest(tmp_path, INPUTS) == (0, None)
    assert checkpoints.ledger_head(None) is None
    for steps in (9, 10, 100, 100):  # the same steps may be saved again
        _save(tmp_path, steps)
        found, state = checkpoints.latest(tmp_path, INPUTS)
        assert found == steps
        assert state is not None
        assert (state / "rank.bin").read_text() == str(steps)
        assert checkpoints.ledger_head(state) == f"head-{steps}"
        assert state.stat().st_mode & 0o077 == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_state_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    (checkpoints.scratch(tmp_path) / "rank.bin").write_text("half")
    assert checkpoints.latest(tmp_path, INPUTS)[0] == 5
    (tmp_path / "step-00000007").mkdir()  # without facts: whatever it is, it is no state
    assert checkpoints.latest(tmp_path, INPUTS)[0] == 5


def test_a_state_of_another_corpus_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    with pytest.raises(ReleaseError, match="was computed from another corpus"):
        checkpoints.latest(tmp_path, "keyed digest of another corpus")
