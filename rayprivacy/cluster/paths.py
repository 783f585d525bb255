"""Paths of a recipe that is sent to a cluster: each must mean the same on every node as it did to whoever wrote it.

A job starts in a scratch directory of the head node, which is deleted with the job. What is relative there is lost:
a key file would be made anew on each submission, which shards the corpus anew and charges the release again; a SQLite
ledger would forget what was spent. So every private path must be absolute, and stand on storage that all nodes mount.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sqlalchemy.engine import URL, make_url

from rayprivacy.core.config import PathKind, path_values, written_paths
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.uris import is_uri, shown
from rayprivacy.corpus.sources import CHITCHAT
from rayprivacy.corpus.tables import ICEBERG
from rayprivacy.runs.checks import DATASET
from rayprivacy.runs.recipe import Recipe

NEVER = ["*.key", "*.db", "*.db-wal", "*.db-shm", "*.parquet", "/runs", ".env", ".venv"]  # travels to a cluster
_FILES = ("passfile", "sslkey", "sslcert", "sslrootcert")  # that a ledger's URL may name
OPTIONS = frozenset({"region", "endpoint_override", "scheme", "anonymous"})  # of a URI, that are no secrets
REMEDY = "give an absolute path on storage that all nodes mount"


def check_recipe_paths(recipe: Recipe, shipped: Path | None = None) -> None:
    """Refuse a recipe with a path that the cluster would not find, or would lose."""
    if recipe.corpus.source == DATASET:
        raise ConfigError(
            f"corpus.source is '{DATASET}', and a job cannot be handed a dataset: write it to storage that all nodes"
            " mount, and name that."
        )
    _corpus("corpus.source", recipe.corpus.source)
    for key, value in path_values(recipe, PathKind.PUBLIC_CORPUS):
        if not _travels(value, shipped):
            _corpus(key, value)
    for key, value in path_values(recipe, PathKind.PRIVATE):
        _absolute(key, value, REMEDY)
    for key, value in path_values(recipe, PathKind.PUBLIC):
        if not _travels(value, shipped):
            _absolute(key, value, f"{REMEDY}, or ship the file with --working-dir, where no Parquet file travels")
    for key, value in path_values(recipe, PathKind.PUBLIC_MODEL):
        _check_base(key, value)
    _check_ledger(recipe.privacy.ledger)
    if shipped is not None:
        _check_apart(recipe, shipped.resolve())


def check_homes(written: Mapping[str, Any], kind: type[Recipe]) -> None:
    """Refuse paths below `~` in the keys of a recipe: home is another directory there."""
    for key, value in written_paths(written, kind, *PathKind):
        if value.startswith("~"):
            _absolute(key, value, REMEDY)


def check_out(out: str, work: str) -> None:
    """Refuse a run directory that the cluster would lose."""
    _place("--out", out, f"{REMEDY}, or a URI such as s3://bucket/run")
    _absolute("--work", work, REMEDY)


def warnings_of(recipe: Recipe) -> Iterator[str]:
    """What is allowed, and still deserves a word."""
    if make_url(recipe.privacy.ledger).get_backend_name() == "sqlite":
        yield (
            "privacy.ledger is a SQLite file: it must lie on a local disk of the head node, and outlive that node, or "
            "what was spent is forgotten; use PostgreSQL on a cluster that comes and goes."
        )


def _corpus(name: str, source: str) -> None:
    if source != CHITCHAT and not source.startswith(ICEBERG):
        _place(name, source, f"{REMEDY}, or a URI such as s3://bucket/chats")


def _place(name: str, value: str, remedy: str) -> None:
    if not is_uri(value):
        _absolute(name, value, remedy)
        return
    uri = urlsplit(value)
    if "@" in uri.netloc or set(parse_qs(uri.query, keep_blank_values=True)) - OPTIONS:
        raise ConfigError(
            f"{name} is '{shown(value)}' with credentials or options that may be secret, and jobs are seen by all who "
            f"see the dashboard: let the nodes' own role open it, and give {', '.join(sorted(OPTIONS))} at most."
        )


def _check_base(name: str, base: str) -> None:
    # A name without a directory here is a hub id; one with a directory here would be taken for a hub id there.
    looks_local = base.startswith((".", "~")) or base.endswith(".gguf") or Path(base).is_dir()
    if looks_local:
        _absolute(name, base, f"{REMEDY}, a hub id, or a model that the image holds")


def _check_ledger(url: str) -> None:
    ledger = make_url(url)
    if ledger.get_backend_name() == "sqlite" and not _is_absolute(ledger.database or ""):
        raise ConfigError(
            f"privacy.ledger is '{url}', which the job would lose with its scratch directory: use PostgreSQL, or four "
            "slashes and a file on the head node's disk, e.g. sqlite:////var/lib/rayprivacy/ledger.db."
        )
    for name in _FILES:
        if (value := _one(ledger, name)) is not None and not _is_absolute(value):
            raise ConfigError(f"privacy.ledger has {name}={value}, a relative path: {REMEDY}.")


def _check_apart(recipe: Recipe, shipped: Path) -> None:
    """Refuse a directory that would take the recipe's own secrets, or its corpus, to every node."""
    ledger = make_url(recipe.privacy.ledger)
    files = [("privacy.ledger", _one(ledger, name)) for name in _FILES]
    files += [("privacy.ledger", ledger.database if ledger.get_backend_name() == "sqlite" else None)]
    source = recipe.corpus.source
    files += [("corpus.source", None if source == CHITCHAT or is_uri(source) or source.startswith(ICEBERG) else source)]
    for key, value in (*path_values(recipe, PathKind.PRIVATE), *files):
        if value and Path(value).resolve().is_relative_to(shipped):
            raise ConfigError(
                f"{key} is '{value}', which lies in --working-dir and would be sent to every node: move it out of"
                " there, or ship a directory that holds code alone."
            )


def _one(url: URL, name: str) -> str | None:
    value = url.query.get(name)
    return value if value is None or isinstance(value, str) else value[0]


def _travels(path: str, shipped: Path | None) -> bool:
    if shipped is None or _is_absolute(path) or not (shipped / path).is_file():
        return False
    parts = PurePosixPath(path).parts
    return not any(fnmatch(part, each) for each in NEVER for part in (*parts, f"/{parts[0]}"))


def _absolute(name: str, value: str, remedy: str) -> None:
    if not _is_absolute(value):
        raise ConfigError(f"{name} is '{value}', a path that is relative to your directory: {remedy}.")


def _is_absolute(value: str) -> bool:
    return PurePosixPath(value).is_absolute()
