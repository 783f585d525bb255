"""A local folder and a store that hold the same run directory.

All code works on local paths: files are memory-mapped, and Ray workers open them by name. So a run that is kept in
object storage is worked on in a local folder. It is pulled when it is opened and pushed after every stage:

    pull    the store's state becomes the folder's, unless the store is where this folder left it: then the folder,
            which may be ahead by a killed stage, is right
    push    new contents first, then the manifest in one write, then what no manifest names any more is deleted
    publish copies of the files on top, under their own names, once a run is finished

Private files stay out of the store. A bucket has readers, replicas and old versions of its own, and private text must
not reach a second place because of where the results go. A run that goes on elsewhere computes them anew. Whoever wants
them mirrored asks for it (`private=True`), for a bucket as well protected as the corpus.

One process works on a run. Before it writes, and again before it replaces the manifest, it looks whether the manifest
is the one it knows; if another process has written, it stops and changes nothing. Between the last look and the write
lies one request: the mirror notices a mistake of the operator, it is no lock. The ledger has its own.
"""

from dataclasses import dataclass
from pathlib import Path

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.errors import ConfigError, StorageError
from rayprivacy.core.files import private_directory, read_json, user_cache, write_json
from rayprivacy.core.mirror.local import Folder
from rayprivacy.core.mirror.manifest import PRIVATE, PUBLIC, Entry, Manifest, is_private
from rayprivacy.core.mirror.remote import MANIFEST, OBJECTS, Store
from rayprivacy.core.mirror.uris import identity

NOTE = ".mirror.json"
ATTEMPTS = 3


@dataclass(frozen=True)
class Note:
    """What a local folder remembers of its store, in `NOTE`.

    Attributes:
        place: digest that names the store.
        manifest: digest of the manifest that the folder was last equal to.
        private: whether private files were mirrored then.
    """

    place: str
    manifest: str | None
    private: bool


def default_folder(uri: str) -> Path:
    """The folder in which a URI is worked on by default: in the user's cache, named by a digest."""
    return user_cache() / "runs" / identity(uri)[:16]


class Mirror:
    """A run directory at a URI.

    Args:
        uri: any folder that pyarrow opens.
        folder: where it is worked on; by default a folder of the user's cache.
        private: mirror private files too.

    Raises:
        ConfigError: the URI cannot be opened.
    """

    def __init__(self, uri: str, folder: Path | None = None, *, private: bool = False) -> None:
        self._store, self._identity, self._private = Store(uri), identity(uri), private
        self.uri = self._store.uri
        self.root = (folder or default_folder(uri)).absolute()
        self._folder = Folder(self.root)
        self._raw: bytes | None = None

    def holds_run(self) -> bool:
        """Whether the store holds anything.

        Raises:
            StorageError: it does not answer, or holds something else.
        """
        return bool(self._look().files)

    def pull(self) -> None:
        """Take over what the store holds.

        Raises:
            ConfigError: the local folder holds other files than this run's.
            StorageError: the store does not answer, or an object is missing or damaged.
        """
        for attempt in range(ATTEMPTS):
            manifest, note = self._look(), self._adopted()
            try:
                return self._take_over(manifest, note)
            except StorageError:
                # A writer deletes what its new manifest does not name: then that one is the state to take.
                if attempt == ATTEMPTS - 1 or self._store.read_manifest() == self._raw:
                    raise

    def push(self) -> None:
        """Make the store hold what the folder holds.

        Raises:
            StorageError: another process has written to the store since, or the store refuses; it holds the state
                before.
        """
        self._push({name: entry for name, entry in self._known.files.items() if not self._takes(name)})

    def forget_private(self) -> int:
        """Delete the private files of the store, also those of earlier runs; how many there were.

        Raises:
            StorageError: as `push`.
        """
        found = sum(is_private(name) for name in self._known.files)
        self._private = False
        self._push({})
        return found

    def publish(self) -> None:
        """Copy the files on top to their own names in the store, for people and other programs.

        Raises:
            StorageError: as `push`.
        """
        manifest = self._known
        files = {name: entry for name, entry in manifest.files.items() if _on_top(name)}
        published = {name: entry.sha256 for name, entry in files.items()}
        if published == manifest.published:
            return
        self._require_ours()
        self._store.copy(
            self._folder, [item for item in files.items() if manifest.published.get(item[0]) != item[1].sha256]
        )
        self._store.delete_copies(manifest.published.keys() - published.keys())
        self._replace(Manifest(manifest.files, published))

    def _take_over(self, manifest: Manifest, note: Note) -> None:
        if self._raw is None:
            return
        ahead = note.manifest == digest_bytes(self._raw)
        # Private files that were not mirrored so far are the folder's own: the store's are taken if it has none.
        private = self._private and (not ahead if note.private else not self._folder.has_private())
        self._write_note(None, private or note.private)  # cut off here, the next pull begins anew
        if not ahead:
            self._match(manifest, private=False)
        if private:
            self._match(manifest, private=True)
        self._keep_note()

    @property
    def _known(self) -> Manifest:
        return Manifest() if self._raw is None else Manifest.parse(self._raw)

    def _look(self) -> Manifest:
        self._raw = self._store.read_manifest()
        try:
            return self._known
        except ValueError:
            pass
        raise StorageError(f"the manifest in {self.uri} cannot be read: another version wrote it, or it was changed.")

    def _takes(self, name: str) -> bool:
        return self._private or not is_private(name)

    def _adopted(self) -> Note:
        """What this folder knows of the store; a folder with other files is refused."""
        path = self.root / NOTE
        if path.exists():
            note = Note(**read_json(path))
            if note.place == self._identity:
                return note
        elif not self.root.exists() or not any(self.root.iterdir()):
            private_directory(self.root)
            return self._write_note(None, self._private)
        raise ConfigError(f"the folder {self.root} holds something else than {self.uri}: choose another with --work.")

    def _keep_note(self) -> None:
        self._write_note(None if self._raw is None else digest_bytes(self._raw), self._private)

    def _write_note(self, manifest: str | None, private: bool) -> Note:
        note = Note(self._identity, manifest, private)
        write_json(self.root / NOTE, vars(note))
        return note

    def _match(self, manifest: Manifest, *, private: bool) -> None:
        """Make the folder's private, or other, files those of the manifest."""
        wanted = {name: entry for name, entry in manifest.files.items() if is_private(name) is private}
        there = self._folder.files(lambda name: is_private(name) is private)
        for name in there.keys() - wanted.keys():
            self._folder.delete(name)
        self._store.download(
            self._folder,
            [
                (name, entry)
                for name, entry in wanted.items()
                if name not in there or there[name].sha256 != entry.sha256
            ],
        )

    def _push(self, others: dict[str, Entry]) -> None:
        ours = self._folder.files(self._takes)
        files = others | ours
        self._require_ours()
        if files != self._known.files:
            self._store.prepare()
            there = self._store.objects()
            self._store.upload(
                self._folder,
                {
                    entry.sha256: (name, entry) for name, entry in ours.items() if there.get(entry.sha256) != entry.size
                }.values(),
            )
            self._replace(Manifest(files, self._known.published))
        # Listed again: what a killed push left behind goes too.
        self._store.delete_objects(self._store.objects().keys() - {entry.sha256 for entry in files.values()})

    def _replace(self, manifest: Manifest) -> None:
        self._require_ours()
        raw = manifest.to_bytes()
        self._store.write_manifest(raw)
        self._raw = raw
        self._require_ours()  # somebody may have written in the same instant
        self._keep_note()

    def _require_ours(self) -> None:
        if self._store.read_manifest() != self._raw:
            raise StorageError(
                f"another process has written to {self.uri} since: nothing was overwritten; let it finish, or stop it"
                " and run with --resume."
            )


def _on_top(name: str) -> bool:
    return name.split("/", 1)[0] not in (PRIVATE, PUBLIC, MANIFEST, OBJECTS)
