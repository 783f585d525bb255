"""The local side of a mirror: which files count, what their digests are, and files that appear whole."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rayprivacy.core.artifacts import digest_file
from rayprivacy.core.errors import StorageError
from rayprivacy.core.files import private_directory
from rayprivacy.core.mirror.manifest import PRIVATE, Entry, is_private

# Names folders of one machine, for `clean`; on another machine it would be wrong.
LOCAL_ONLY = f"{PRIVATE}/features_store"
BLOCK = 8 << 20


class Folder:
    """A run directory on a file system.

    Args:
        root: the folder; made, for the owner only, when it is not there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def files(self, wanted: Callable[[str], bool]) -> dict[str, Entry]:
        """The files that are mirrored; digests are computed again for files that changed.

        Scratch files (a dot in front, or `.tmp` behind) belong to nobody.

        Args:
            wanted: whether a path counts; of others not even the content is read.

        Raises:
            StorageError: a file is a link.
        """
        return {name: self._entry(name) for name in sorted(self._names()) if wanted(name)}

    def has_private(self) -> bool:
        """Whether there is any private file that a mirror could take."""
        return any(is_private(name) for name in self._names())

    def _names(self) -> Iterator[str]:
        for place, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = Path(place).relative_to(self.root)
            links = [name for name in folders if Path(place, name).is_symlink()]
            names = [name for name in files if not name.startswith(".") and not name.endswith(".tmp")]
            yield from (
                (inside / name).as_posix() for name in (*names, *links) if (inside / name).as_posix() != LOCAL_ONLY
            )

    def _entry(self, name: str) -> Entry:
        path = self.root / name
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(
                f"{path} is a link or no plain file: a mirrored run holds plain files only, move it away."
            )
        mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._known.get(name)
        digest = known[1] if known and known[0] == mark else digest_file(path)
        self._known[name] = (mark, digest)
        return Entry(found.st_size, digest, stat.S_IMODE(found.st_mode))

    def write(self, name: str, entry: Entry, blocks: Iterable[bytes]) -> bool:
        """Write a file that appears whole, with its mode; False, and no file, when the bytes are not the entry's.

        Private files get mode 0600 in folders of mode 0700, whatever the entry says.
        """
        target = self._place(name)
        scratch = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
        mode = 0o600 if is_private(name) else entry.mode & 0o777
        digest = hashlib.sha256()
        try:
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for block in blocks:
                    digest.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() == entry.sha256:
                scratch.chmod(mode)
                scratch.replace(target)
                return True
            return False
        finally:
            scratch.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        target = self.root / name
        for folder in reversed(target.relative_to(self.root).parents[:-1]):
            if is_private(folder.as_posix()):
                private_directory(self.root / folder)
            else:
                (self.root / folder).mkdir(exist_ok=True)
        return target

    def delete(self, name: str) -> None:
        """Delete a file."""
        (self.root / name).unlink(missing_ok=True)


def blocks_of(stream: BinaryIO) -> Iterator[bytes]:
    """The content of a stream in blocks of bounded size."""
    while block := stream.read(BLOCK):
        yield block
