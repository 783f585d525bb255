"""A run directory in object storage: what a reader sees, what stays out, and what two writers get. Against real S3."""

import itertools
import stat
from contextlib import suppress
from typing import Any

import pytest
from s3_server import SECRET, serving

from rayprivacy.core.errors import ConfigError, CorpusError, StorageError
from rayprivacy.core.storage import Manifest, Mirror, Store, default_folder
from rayprivacy.core.uris import identity, open_uri, shown

RUN = {
    "recipe.yaml": b"method: seqpate\n",
    "run.log": b"{}\n",
    "empty": b"",
    "model/config.json": b"{}",
    "public/warm.safetensors": bytes(range(256)) * 10,
    "private/shards/part-00000.parquet": b"the cat sat on my mat",
    "private/training/states/step-00000002/facts.json": b"{}",
}
SHARED = {name for name in RUN if not name.startswith("private/")}


@pytest.fixture(scope="module")
def bucket():
    with serving() as found:
        yield found


class Place:
    numbers = itertools.count()

    def __init__(self, bucket):
        self._bucket, self._folder = bucket, f"jobs/{next(self.numbers)}"
        self.uri = bucket.uri(self._folder)

    def stored(self):
        names = self._bucket.names(self._folder)
        return {name: self._bucket.read(f"{self._folder}/{name}") for name in names}

    def times(self):
        info = self._bucket.files.get_file_info
        return {name: info(f"runs/{self._folder}/{name}").mtime_ns for name in self.stored()}

    def everything(self):
        return self._bucket.everything(self._folder)

    def write(self, name, data):
        self._bucket.write(f"{self._folder}/{name}", data)


@pytest.fixture
def place(bucket):
    return Place(bucket)


def fill(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def content(root):
    paths = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def pushed(uri, root, files, *, private=False):
    """What a run does: take what the store has, write some files, and give it the state."""
    mirror = Mirror(uri, root, private=private)
    mirror.pull()
    fill(root, files)
    mirror.push()
    return mirror


def pulled(uri, root, *, private=False):
    Mirror(uri, root, private=private).pull()
    return content(root)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_another_machine_gets_the_same_files_and_no_private_ones(place, tmp_path):
    large = {"model/weights": bytes(range(256)) * 70_000}  # more than two blocks, and than one part of an upload
    pushed(place.uri, tmp_path / "one", RUN | large)
    assert pulled(place.uri, tmp_path / "two") == {name: RUN[name] for name in SHARED} | large
    assert not (tmp_path / "two" / "private").exists()
    stored = place.everything()
    assert b"method: seqpate" in stored
    assert not any(word in stored for word in (b"the cat sat", b"private/"))


def test_private_files_travel_when_asked_and_get_their_modes_back(place, tmp_path):
    pushed(place.uri, tmp_path / "one", RUN, private=True)
    assert b"the cat sat" in place.everything()
    assert pulled(place.uri, tmp_path / "shared").keys() == SHARED
    assert pulled(place.uri, tmp_path / "two", private=True) == RUN
    inside = [tmp_path / "two" / "private", *(tmp_path / "two" / "private").rglob("*")]
    assert {mode(path) for path in inside if path.is_dir()} == {0o700}
    assert {mode(path) for path in inside if path.is_file()} == {0o600}
    assert mode(tmp_path / "two") == 0o700
    assert pushed(place.uri, tmp_path / "three", {"run.log": b"more"}).holds_run(), "resumed without them"
    assert pulled(place.uri, tmp_path / "three", private=True) == RUN | {"run.log": b"more"}, "asked for later"


def test_a_folder_behind_the_store_follows_it_but_for_private_files(place, tmp_path):
    pushed(place.uri, tmp_path / "one", RUN)
    pushed(place.uri, tmp_path / "two", {"run.log": b"of two"})
    fill(tmp_path / "one", {"run.log": b"unpushed", "synthetic.parquet": b"unpushed"})
    mirror = Mirror(place.uri, tmp_path / "one", private=True)
    mirror.pull()
    assert content(tmp_path / "one") == RUN | {"run.log": b"of two"}
    mirror.push()
    assert pulled(place.uri, tmp_path / "three", private=True) == RUN | {"run.log": b"of two"}


def test_changed_and_deleted_files_follow_and_old_contents_go(place, tmp_path):
    mirror = pushed(place.uri, tmp_path / "one", RUN)
    changed = {"run.log": b"{}\n{}\n", "certificate.json": b"{}"}
    fill(tmp_path / "one", changed)
    (tmp_path / "one" / "model" / "config.json").unlink()
    mirror.push()
    expected = {name: RUN[name] for name in SHARED - {"model/config.json"}} | changed
    assert pulled(place.uri, tmp_path / "two") == expected
    stored, times = place.stored(), place.times()
    assert stored == expected | {"manifest.json": stored["manifest.json"]}, "under their own names"
    mirror.push()
    assert place.times() == times, "nothing travels when nothing changed"


class Killed(BaseException):
    pass


def killed_at(moment, monkeypatch, mirror):
    """Push, and stop before the store is changed for the n-th time; False if there are fewer changes than that."""
    calls = itertools.count()

    def watched(original):
        def act(self, *args):
            if self is mirror._store and next(calls) >= moment:
                raise Killed
            return original(self, *args)

        return act

    with monkeypatch.context() as patch, suppress(Killed):
        for name in ("write", "delete"):
            patch.setattr(Store, name, watched(getattr(Store, name)))
        mirror.push()
        return False
    return True


@pytest.mark.parametrize("machine", ["one", "two"])
def test_a_push_killed_anywhere_leaves_one_whole_state_and_any_machine_goes_on(tmp_path, monkeypatch, machine):
    later = {"run.log": b"later", "recipe.yaml": b"", "synthetic.parquet": b"later too"}
    before = {name: RUN[name] for name in SHARED}
    after = {name: data for name, data in (before | later).items() if name != "empty"}
    seen = []
    for moment in itertools.count():
        root = tmp_path / str(moment)
        uri = (root / "store").as_uri()
        mirror = pushed(uri, root / "one", RUN)
        fill(root / "one", later)
        (root / "one" / "empty").unlink()
        killed = killed_at(moment, monkeypatch, mirror)
        seen.append(pulled(uri, root / "two"))
        assert seen[-1] in (before, after)
        pushed(uri, root / machine, {"run.log": b"resumed"})
        expected = (after if machine == "one" else seen[-1]) | {"run.log": b"resumed"}
        assert pulled(uri, root / "three") == expected
        left = {path.relative_to(root / "store").as_posix() for path in (root / "store").rglob("*") if path.is_file()}
        assert {name for name in left if not name.startswith("manifest")} == expected.keys()
        if not killed:
            break
    assert seen == sorted(seen, key=lambda state: state == after), "the state changes once"
    assert before in seen
    assert len(seen) > 8


def test_a_push_that_was_cut_off_goes_on(place, tmp_path, monkeypatch):
    mirror = pushed(place.uri, tmp_path / "one", RUN)
    fill(tmp_path / "one", {"run.log": b"later", "synthetic.parquet": b"later too"})
    before = place.stored().keys()
    assert killed_at(3, monkeypatch, mirror)
    assert len(place.stored().keys() - before) == 2, "the new contents should have been there"
    assert pulled(place.uri, tmp_path / "two") == {name: RUN[name] for name in SHARED}
    # The folder that is ahead goes on; what is needed no more goes, also when a push was cut off.
    (tmp_path / "one" / "synthetic.parquet").unlink()
    pushed(place.uri, tmp_path / "one", {})
    assert b"later too" not in place.everything()
    assert pulled(place.uri, tmp_path / "two")["run.log"] == b"later"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_the_second_of_two_writers_stops(place, tmp_path, monkeypatch, meanwhile):
    """Whether the other wrote before the push, or while files were on their way."""
    pushed(place.uri, tmp_path / "start", RUN)
    first, second = (Mirror(place.uri, tmp_path / name) for name in ("first", "second"))
    first.pull()
    second.pull()

    def go_first(*_):
        monkeypatch.undo()
        pushed(place.uri, tmp_path / "first", {"run.log": b"first"})

    fill(tmp_path / "second", {"run.log": b"second"})
    if meanwhile:
        monkeypatch.setattr(second, "_put", go_first)
    else:
        go_first()
    before = place.everything()
    with pytest.raises(StorageError, match=r"another process has written to s3://runs/jobs/.* --resume") as refused:
        second.push()
    assert "endpoint" not in str(refused.value)
    assert meanwhile or place.everything() == before
    assert pulled(place.uri, tmp_path / "third")["run.log"] == b"first"


def test_what_is_not_as_the_manifest_says_does_not_appear(place, tmp_path):
    pushed(place.uri, tmp_path / "one", {"run.log": b"right"})
    place.write("run.log", b"wrong")
    with pytest.raises(StorageError, match=r"run\.log in s3://runs/jobs/\w+ is not what its manifest says"):
        pulled(place.uri, tmp_path / "two")
    assert content(tmp_path / "two") == {}
    for damage in (b"{", b"[]", b'{"format": 1, "files": {}, "published": {}}', b"\xff"):
        place.write("manifest.json", damage)
        with pytest.raises(StorageError, match="cannot be read"):
            pulled(place.uri, tmp_path / "two")


def test_forgotten_private_files_are_gone_with_what_a_killed_push_left(place, tmp_path):
    left = f".next/{'ab' * 32}"
    pushed(place.uri, tmp_path / "one", RUN, private=True)
    for name in (left, "private/teachers/1"):
        place.write(name, b"the cat sat, left by a killed push")
    mirror = Mirror(place.uri, tmp_path / "elsewhere")
    mirror.pull()
    assert mirror.forget_private() == 2
    stored = place.everything()
    assert not any(word in stored for word in (b"the cat sat", b"private/"))
    assert pulled(place.uri, tmp_path / "two", private=True).keys() == SHARED
    place.write(left, b"the cat sat, left by another push")
    assert mirror.forget_private() == 0
    assert b"the cat sat" not in place.everything()


def test_files_of_others_are_neither_taken_nor_touched(bucket, place, tmp_path):
    place.write("data.csv", b"somebody's")
    with pytest.raises(StorageError, match="holds other files"):
        Mirror(place.uri, tmp_path / "one").pull()
    fill(tmp_path / "mine", {"notes.txt": b"mine"})
    pushed(Place(bucket).uri, tmp_path / "run", RUN)
    for folder in ("mine", "run"):
        with pytest.raises(ConfigError, match="--work"):
            Mirror(Place(bucket).uri, tmp_path / folder).pull()
    assert place.stored().keys() == {"data.csv"}
    assert content(tmp_path / "mine") == {"notes.txt": b"mine"}


def test_scratch_files_stay_and_links_are_refused(place, tmp_path):
    extra = {".run.log.123": b"half", "public/warm.tmp": b"half", "private/.part-1": b"half", "private/a": b"a"}
    machine = {"private/features_store": b"a folder of this machine"}
    mirror = pushed(place.uri, tmp_path / "one", {"run.log": b"whole"} | extra | machine, private=True)
    assert pulled(place.uri, tmp_path / "two", private=True).keys() == {"run.log", "private/a"}
    (tmp_path / "one" / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="link"):
        mirror.push()


def test_a_folder_of_files_is_a_store_too(tmp_path):
    store = tmp_path / "nfs" / "run"
    pushed(store.as_uri(), tmp_path / "one", RUN, private=True)
    assert pulled(store.as_uri(), tmp_path / "two", private=True) == RUN
    assert {mode(folder) for folder in (store, *store.rglob("*")) if folder.is_dir()} == {0o700}
    assert mode(store / "manifest.json") == 0o600
    assert mode(store / "model/config.json") == mode(tmp_path / "one" / "model/config.json")


def test_errors_name_the_place_and_no_credentials(bucket, tmp_path):
    query = bucket.uri("x").partition("?")[2]
    missing = Mirror(f"s3://testing:{SECRET}@nowhere/run?{query}", tmp_path / "one")
    missing.pull()
    fill(tmp_path / "one", {"run.log": b"{}"})
    for call, error, match in (
        (missing.push, StorageError, r"writing to s3://nowhere/run failed \([A-Z_]+\)"),
        (lambda: Mirror(f"s3://testing:{SECRET}@runs?{query}"), ConfigError, "the run directory is 's3://runs'"),
        (
            lambda: open_uri("corpus.source", f"nosuch://user:{SECRET}@host/a?token={SECRET}", CorpusError),
            CorpusError,
            r"corpus\.source is 'nosuch://host/a'",
        ),
    ):
        with pytest.raises(error, match=match) as refused:
            call()
        assert SECRET not in str(refused.value)


def test_a_place_is_one_whatever_its_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert shown("s3://a:b@bucket/run/?x=1#y") == "s3://bucket/run"
    assert shown("/data/chats.parquet") == "/data/chats.parquet"
    same = ["s3://bucket/run", "s3://key:secret@bucket/run/", "s3://bucket/run?token=t"]
    assert len({identity(uri) for uri in same}) == 1
    assert identity(same[0]) != identity("s3://bucket/run?endpoint_override=other")
    assert default_folder(same[0]).parent == tmp_path / "rayprivacy" / "runs"


def test_a_manifest_never_leads_out_of_the_folder():
    entry = {"size": 1, "sha256": "ab" * 32, "mode": 0o644}
    assert Manifest.model_validate({"format": 2, "files": {"a/b": entry}, "loose": ["a/b"]}).files.keys() == {"a/b"}
    refused: list[dict[str, Any]] = [{"files": {"a": entry | {"sha256": "../../secret"}}}, {"format": 1}]
    for name in ("../outside", "/etc/passwd", "a/../../b", ".ssh/key", "a//b", ""):
        refused += [{"files": {name: entry}}, {"loose": [name]}]
    for manifest in refused:
        with pytest.raises(ValueError, match="Manifest"):
            Manifest.model_validate({"format": 2} | manifest)
