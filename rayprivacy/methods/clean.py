"""Delete what a run computed from private text; what was released stays.

The recipe, the public files, the synthetic text, the certificate and the votes in the ledger are kept. So are
metrics.json and report.html, whose internal figures were measured on private text. Files are deleted as `rm` does: a
disk that must not give them back has to be encrypted or wiped.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rayprivacy.audit.canaries import PLAN_FILE
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import write_atomic
from rayprivacy.models.chunks import delete_chunks
from rayprivacy.models.store import FeatureStore

COMPUTED = ("shards", "teachers", "features", "training", "shadows", "metric")
STORES = "features_store"


@dataclass(frozen=True)
class Cleaned:
    """What `clean_run` did.

    Attributes:
        deleted: folders that are gone.
        freed: bytes of their files.
        left: what else lies among the private files; no run made it.
    """

    deleted: tuple[Path, ...]
    freed: int
    left: tuple[Path, ...]


def remember_store(private: Path, store: FeatureStore) -> None:
    """Note where a run keeps cached features, for `clean_run`.

    Args:
        private: the run's folder of private files.
        store: where its features are, perhaps outside of the run; earlier ones stay noted.
    """
    noted = dict.fromkeys([*_noted(private), store.folder])
    write_atomic(private / STORES, "".join(f"{folder}\n" for folder in noted).encode())


def clean_run(root: Path) -> Cleaned:
    """Delete what a run computed from private text (`COMPUTED`), also where it keeps features elsewhere.

    Interrupted, it can be repeated. A run whose features others share takes them from the others too: they compute
    them anew.

    Raises:
        ConfigError: this is no run directory, or a folder in it is a link.
        ShardError: a store's folder holds other files; nothing in the run was deleted.
    """
    private = root.absolute() / "private"
    if not ((root / "recipe.yaml").is_file() and private.is_dir()):
        raise ConfigError(f"{root} is no run directory: give one that `rayprivacy run --out` made.")
    inside = [private / name for name in COMPUTED if (private / name).exists()]
    for folder in inside:
        if folder.is_symlink():
            raise ConfigError(f"{folder} is a link: delete what it leads to yourself, then the link.")
    outside = [store for store in _noted(private) if store.is_dir() and not store.is_relative_to(private)]
    freed = sum(delete_chunks(store) for store in outside) + sum(_delete(folder) for folder in inside)
    (private / PLAN_FILE).unlink(missing_ok=True)
    (private / STORES).unlink(missing_ok=True)  # last, so that a second try still knows the stores
    return Cleaned((*outside, *inside), freed, tuple(sorted(private.iterdir())))


def _noted(private: Path) -> list[Path]:
    path = private / STORES
    return [Path(line) for line in path.read_text().splitlines()] if path.exists() else []


def _delete(folder: Path) -> int:
    freed = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    shutil.rmtree(folder)
    return freed
