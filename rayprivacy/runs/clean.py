"""Deletion of what a run computed from private text; what was released stays.

A run notes the name of every private file and folder that it makes (`Run.private`); no method needs an entry here.

The recipe, the public files, the synthetic text, questions about it, the certificate and the votes in the ledger are
kept. So are metrics.json and report.html, whose internal figures were measured on private text. Files are deleted as
`rm` does: a disk that must not give them back has to be encrypted or wiped.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import write_atomic
from rayprivacy.models.store import FeatureStore, delete_chunks
from rayprivacy.runs.directory import RECIPE, forget_private, noted_private

STORES = "features_store"


@dataclass(frozen=True)
class Cleaned:
    """What `clean_run` did."""

    deleted: tuple[Path, ...]
    freed: int  # bytes of their files
    left: tuple[Path, ...]  # what else lies among the private files; the run did not make it
    at_uri: int = 0  # how many private files were deleted at the URI of the run, if it has one


def remember_store(root: Path, store: FeatureStore) -> None:
    """Note where features are cached outside of the run, for `clean_run`; earlier places stay noted."""
    private = root / "private"
    if store.folder.is_relative_to(private):
        return
    noted = dict.fromkeys([*_noted(private), store.folder])
    write_atomic(private / STORES, "".join(f"{folder}\n" for folder in noted).encode())


def clean_run(root: Path) -> Cleaned:
    """Delete what a run computed from private text, also where it keeps features elsewhere.

    Interrupted, it can be repeated. A run whose features others share takes them from the others too: they compute
    them anew. Where a store's folder holds other files (ShardError), nothing in the run is deleted.
    """
    private = root.absolute() / "private"
    if not ((root / RECIPE).is_file() and private.is_dir()):
        raise ConfigError(f"{root} is no run directory: give one that `rayprivacy run --out` made.")
    made = dict.fromkeys(noted_private(root.absolute()))
    inside = [private / name for name in made if (private / name).exists()]
    for folder in inside:
        if folder.is_symlink():
            raise ConfigError(f"{folder} is a link: delete what it leads to yourself, then the link.")
    outside = [store for store in _noted(private) if store.is_dir() and not store.is_relative_to(private)]
    freed = sum(delete_chunks(store) for store in outside) + sum(_delete(folder) for folder in inside)
    (private / STORES).unlink(missing_ok=True)  # last, so that a second try still knows what there is to delete
    forget_private(root.absolute())
    return Cleaned((*outside, *inside), freed, tuple(sorted(private.iterdir())))


def _noted(private: Path) -> list[Path]:
    path = private / STORES
    return [Path(line) for line in path.read_text().splitlines()] if path.exists() else []


def _delete(path: Path) -> int:
    if path.is_file():
        freed = path.lstat().st_size
        path.unlink()
        return freed
    freed = sum(inner.lstat().st_size for inner in path.rglob("*") if not inner.is_dir())
    shutil.rmtree(path)
    return freed
