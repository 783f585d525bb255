"""Saved states of a training: one folder for each saved step, complete or absent, of which the newest is kept.

A state carries the ledger's head: a restart that meets an older copy of the ledger is refused. It carries the keyed
digest of what it was computed from: a training of another corpus never goes on from it. States are private files:
weights and moments are noisy, but have not been released.
"""

import shutil
from pathlib import Path

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.files import private_directory, read_json, write_json

FACTS = "facts.json"


def latest(folder: Path, inputs: str) -> tuple[int, Path | None]:
    """Steps and folder of the newest saved state, (0, None) before the first; one of other inputs is refused."""
    found = sorted(path for path in folder.glob("step-*") if (path / FACTS).is_file())
    if not found:
        return 0, None
    if read_json(found[-1] / FACTS).get("inputs") != inputs:
        raise ReleaseError(
            f"the state in {folder} was computed from another corpus, base model or mechanism: delete that folder, or"
            " choose another --out."
        )
    return int(found[-1].name.removeprefix("step-")), found[-1]


def scratch(folder: Path) -> Path:
    """Where all ranks write the next state."""
    return private_directory(folder / ".saving")


def publish(folder: Path, steps: int, head: str, inputs: str) -> None:
    """Make the state in `scratch` the newest one, in one rename, and delete older ones; for one rank."""
    write_json(folder / ".saving" / FACTS, {"steps": steps, "ledger_head": head, "inputs": inputs})
    target = folder / f"step-{steps:08d}"
    if target.exists():  # the same steps, saved before
        shutil.rmtree(target)
    (folder / ".saving").rename(target)
    for path in folder.glob("step-*"):
        if path != target:
            shutil.rmtree(path)


def ledger_head(state: Path | None) -> str | None:
    """The head that the ledger had when the state was saved."""
    return None if state is None else str(read_json(state / FACTS)["ledger_head"])
