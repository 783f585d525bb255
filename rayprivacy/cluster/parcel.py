"""What travels to the cluster: the job's own files, and nothing of the directory that one submits from.

With a working directory its files travel too, less what `.rayignore` and `.gitignore` name: that is meant for code
that the cluster's image lacks. Corpora, runs, ledgers and keys are named there.
"""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._private.runtime_env.packaging import create_package

from rayprivacy.cluster.paths import NEVER
from rayprivacy.core.errors import ConfigError


@contextmanager
def parcel(files: dict[str, str], working_dir: Path | None = None) -> Iterator[str]:
    """A directory, or a zip file, that Ray can upload; it is gone at the end."""
    if working_dir is not None and not working_dir.is_dir():
        raise ConfigError(f"--working-dir is {working_dir}, which is no directory: name one, or leave the option out.")
    with tempfile.TemporaryDirectory(prefix="rayprivacy-submit-") as scratch:
        if working_dir is not None:
            yield str(_zipped(working_dir.resolve(), files, Path(scratch) / "working-dir.zip"))
            return
        for name, text in files.items():
            (Path(scratch) / name).write_text(text)
        yield scratch


def _zipped(directory: Path, files: dict[str, str], target: Path) -> Path:
    # Ray packs it as it packs any working directory, so that its rules on what to leave out are the usual ones.
    create_package(str(directory), target, include_gitignore=True, excludes=NEVER, logger=None)
    with zipfile.ZipFile(target, "a") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return target
