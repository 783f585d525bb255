"""A run directory in object storage: what a reader sees, what stays out, and what two writers get. Against real S3."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import SECRET, Bucket, serving

from rayprivacy.core.errors import ConfigError, CorpusError, StorageError
from rayprivacy.core.mirror import Mirror
from rayprivacy.core.mirror.manifest import Entry, Manifest
from rayprivacy.core.mirror.mirror import default_folder
from rayprivacy.core.mirror.remote import Store
from rayprivacy.core.mirror.uris import identity, open_uri, shown

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
def bucket() -> Iterator[Bucket]:
    with serving() as found:
        yield found


@pytest.fixture
def place(bucket: Bucket, request: pytest.FixtureRequest) -> str:
    """A folder of the bucket for one test."""
    return f"jobs/{request.node.originalname}"


def fill(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def content(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def pushed(uri: str, root: Path, files: dict[str, bytes], *, private: bool = False) -> Mirror:
    mirror = Mirror(uri, root, private=private)
    mirror.pull()
    fill(root, files)
    mirror.push()
    return mirror


def pulled(uri: str, root: Path, *, private: bool = False) -> dict[str, bytes]:
    Mirror(uri, root, private=private).pull()
    return content(root)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_another_machine_gets_the_same_files_and_no_private_ones(bucket: Bucket, place: str, tmp_path: Path) -> None:
    large = {"model/weights": bytes(range(256)) * 70_000}  # more than two blocks, and than one part of an upload
    pushed(bucket.uri(place), tmp_path / "one", RUN | large)
    found = pulled(bucket.uri(place), tmp_path / "two")
    assert found == {name: RUN[name] for name in SHARED} | large
    assert not (tmp_path / "two" / "private").exists()
    stored = bucket.everything(place)
    assert b"the cat sat" not in stored
    assert b"private/" not in stored
    assert b"method: seqpate" in stored


def test_private_files_travel_when_asked_and_get_their_modes_back(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN, private=True)
    assert b"the cat sat" in bucket.everything(place)
    assert pulled(bucket.uri(place), tmp_path / "shared").keys() == SHARED
    assert pulled(bucket.uri(place), tmp_path / "two", private=True) == RUN
    inside = [tmp_path / "two" / "private", *(tmp_path / "two" / "private").rglob("*")]
    assert {mode(path) for path in inside if path.is_dir()} == {0o700}
    assert {mode(path) for path in inside if path.is_file()} == {0o600}
    assert mode(tmp_path / "two") == 0o700


def test_who_resumes_without_private_files_may_ask_for_them_later(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN, private=True)
    again = pushed(bucket.uri(place), tmp_path / "two", {"run.log": b"more"})
    assert again.holds_run()
    assert pulled(bucket.uri(place), tmp_path / "two", private=True) == RUN | {"run.log": b"more"}


def test_private_files_of_this_folder_are_kept_when_the_store_has_none(
    bucket: Bucket, place: str, tmp_path: Path
) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN)
    pushed(bucket.uri(place), tmp_path / "two", {"run.log": b"of two"})
    mirror = Mirror(bucket.uri(place), tmp_path / "one", private=True)
    mirror.pull()
    assert content(tmp_path / "one") == RUN | {"run.log": b"of two"}
    mirror.push()
    assert pulled(bucket.uri(place), tmp_path / "three", private=True) == RUN | {"run.log": b"of two"}


def test_changed_and_deleted_files_follow_and_old_contents_go(bucket: Bucket, place: str, tmp_path: Path) -> None:
    mirror = pushed(bucket.uri(place), tmp_path / "one", RUN)
    fill(tmp_path / "one", {"run.log": b"{}\n{}\n", "certificate.json": b"{}"})
    (tmp_path / "one" / "model" / "config.json").unlink()
    mirror.push()
    expected = {name: RUN[name] for name in SHARED - {"model/config.json"}}
    expected |= {"run.log": b"{}\n{}\n", "certificate.json": b"{}"}
    assert pulled(bucket.uri(place), tmp_path / "two") == expected
    assert len([name for name in bucket.names(place) if name.startswith("objects/")]) == len(set(expected.values()))


def test_nothing_travels_when_nothing_changed(bucket: Bucket, place: str, tmp_path: Path) -> None:
    mirror = pushed(bucket.uri(place), tmp_path / "one", RUN)
    before = {name: bucket.files.get_file_info(f"runs/{place}/{name}").mtime_ns for name in bucket.names(place)}
    mirror.push()
    after = {name: bucket.files.get_file_info(f"runs/{place}/{name}").mtime_ns for name in bucket.names(place)}
    assert before == after


def test_a_writer_killed_before_the_manifest_leaves_the_state_before(
    bucket: Bucket, place: str, tmp_path: Path
) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN)
    fill(tmp_path / "one", {"run.log": b"later", "synthetic.parquet": b"later too"})
    code = f"""
import os, signal
from pathlib import Path
from rayprivacy.core.mirror import Mirror
from rayprivacy.core.mirror.remote import Store
Store.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
mirror = Mirror({bucket.uri(place)!r}, Path({str(tmp_path / "one")!r}))
mirror.pull()
mirror.push()
"""
    before = bucket.names(place)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(bucket.names(place) - before) == 2, "the new contents should have been there"
    assert pulled(bucket.uri(place), tmp_path / "two") == {name: RUN[name] for name in SHARED}
    # The folder that is ahead goes on; what is needed no more goes, also when a push was cut off.
    os.unlink(tmp_path / "one" / "synthetic.parquet")
    mirror = Mirror(bucket.uri(place), tmp_path / "one")
    mirror.pull()
    assert (tmp_path / "one" / "run.log").read_bytes() == b"later"
    mirror.push()
    assert b"later too" not in bucket.everything(place)
    assert pulled(bucket.uri(place), tmp_path / "two")["run.log"] == b"later"


def test_the_second_of_two_writers_stops_and_overwrites_nothing(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "start", RUN)
    first, second = (Mirror(bucket.uri(place), tmp_path / name) for name in ("first", "second"))
    first.pull()
    second.pull()
    fill(tmp_path / "first", {"run.log": b"first"})
    first.push()
    fill(tmp_path / "second", {"run.log": b"second"})
    before = bucket.names(place)
    with pytest.raises(StorageError, match=r"another process has written to s3://runs/jobs/.* --resume") as refused:
        second.push()
    assert "endpoint" not in str(refused.value)
    assert bucket.names(place) == before
    assert pulled(bucket.uri(place), tmp_path / "third")["run.log"] == b"first"


def test_a_writer_in_between_is_noticed_before_the_manifest(
    bucket: Bucket, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = pushed(bucket.uri(place), tmp_path / "one", RUN)
    other = Mirror(bucket.uri(place), tmp_path / "two")
    other.pull()
    fill(tmp_path / "one", {"run.log": b"one"})
    fill(tmp_path / "two", {"run.log": b"two"})
    upload = Store.upload

    def interrupted(self: Store, *args: object) -> None:
        monkeypatch.undo()
        other.push()
        upload(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "upload", interrupted)
    with pytest.raises(StorageError, match="another process"):
        mirror.push()
    assert pulled(bucket.uri(place), tmp_path / "three")["run.log"] == b"two"


def test_a_reader_whose_state_was_replaced_takes_the_next(
    bucket: Bucket, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = pushed(bucket.uri(place), tmp_path / "one", RUN)
    download = Store.download

    def overtaken(self: Store, *args: object) -> None:
        monkeypatch.undo()
        fill(tmp_path / "one", {"run.log": b"next", "recipe.yaml": b"next too"})
        mirror.push()
        download(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "download", overtaken)
    found = pulled(bucket.uri(place), tmp_path / "two")
    assert (found["run.log"], found["recipe.yaml"]) == (b"next", b"next too")


def test_a_folder_behind_the_store_becomes_what_the_store_is(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN)
    pushed(bucket.uri(place), tmp_path / "two", {"run.log": b"of two"})
    fill(tmp_path / "one", {"run.log": b"unpushed", "synthetic.parquet": b"unpushed"})
    found = pulled(bucket.uri(place), tmp_path / "one")
    assert found["run.log"] == b"of two"
    assert "synthetic.parquet" not in found
    assert found.keys() >= RUN.keys() - SHARED, "private files stay where they are"


def test_a_damaged_object_is_refused_and_no_file_appears(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "one", {"run.log": b"right"})
    (name,) = (name for name in bucket.names(place) if name.startswith("objects/"))
    bucket.write(f"{place}/{name}", b"wrong")
    with pytest.raises(StorageError, match="damaged"):
        pulled(bucket.uri(place), tmp_path / "two")
    assert content(tmp_path / "two") == {}


def test_copies_lie_under_their_own_names_once_published(bucket: Bucket, place: str, tmp_path: Path) -> None:
    mirror = pushed(bucket.uri(place), tmp_path / "one", RUN, private=True)
    assert not bucket.names(place) & RUN.keys()
    mirror.publish()
    top = {"recipe.yaml", "run.log", "empty", "model/config.json"}
    assert bucket.names(place) & RUN.keys() == top
    fill(tmp_path / "one", {"run.log": b"again"})
    (tmp_path / "one" / "model" / "config.json").unlink()
    mirror.push()
    mirror.publish()
    assert bucket.read(f"{place}/run.log") == b"again"
    assert bucket.names(place) & RUN.keys() == top - {"model/config.json"}
    assert pulled(bucket.uri(place), tmp_path / "two", private=True).keys() == RUN.keys() - {"model/config.json"}


def test_forgotten_private_files_are_gone_with_what_a_killed_push_left(
    bucket: Bucket, place: str, tmp_path: Path
) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN, private=True)
    bucket.write(f"{place}/objects/{'ab' * 32}", b"the cat sat, left by a killed push")
    mirror = Mirror(bucket.uri(place), tmp_path / "elsewhere")
    mirror.pull()
    assert mirror.forget_private() == 2
    stored = bucket.everything(place)
    assert b"the cat sat" not in stored
    assert b"private/" not in stored
    assert pulled(bucket.uri(place), tmp_path / "two", private=True).keys() == SHARED
    assert mirror.forget_private() == 0


def test_files_of_others_are_neither_taken_nor_touched(bucket: Bucket, place: str, tmp_path: Path) -> None:
    bucket.write(f"{place}/data.csv", b"somebody's")
    with pytest.raises(StorageError, match="holds other files"):
        Mirror(bucket.uri(place), tmp_path / "one").pull()
    fill(tmp_path / "mine", {"notes.txt": b"mine"})
    with pytest.raises(ConfigError, match="--work"):
        Mirror(bucket.uri(place + "-free"), tmp_path / "mine").pull()
    pushed(bucket.uri(place + "-one"), tmp_path / "run", RUN)
    with pytest.raises(ConfigError, match="--work"):
        Mirror(bucket.uri(place + "-two"), tmp_path / "run").pull()
    assert bucket.names(place) == {"data.csv"}
    assert content(tmp_path / "mine") == {"notes.txt": b"mine"}


def test_scratch_files_stay_and_links_are_refused(bucket: Bucket, place: str, tmp_path: Path) -> None:
    extra = {".run.log.123": b"half", "public/warm.tmp": b"half", "private/.part-1": b"half", "private/a": b"a"}
    machine = {"private/features_store": b"a folder of this machine"}
    mirror = pushed(bucket.uri(place), tmp_path / "one", {"run.log": b"whole"} | extra | machine, private=True)
    assert pulled(bucket.uri(place), tmp_path / "two", private=True).keys() == {"run.log", "private/a"}
    (tmp_path / "one" / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="link"):
        mirror.push()


@pytest.mark.parametrize("uri", ["file", "s3"])
def test_a_folder_of_files_is_a_store_too(bucket: Bucket, place: str, tmp_path: Path, uri: str) -> None:
    where = (tmp_path / "nfs" / "run").as_uri() if uri == "file" else bucket.uri(place)
    mirror = pushed(where, tmp_path / "one", RUN, private=True)
    mirror.publish()
    assert pulled(where, tmp_path / "two", private=True) == RUN
    if uri == "file":
        for folder in (".", "objects"):
            assert mode(tmp_path / "nfs" / "run" / folder) == 0o700
        assert mode(tmp_path / "nfs" / "run" / "manifest.json") == 0o600
        copied = "model/config.json"
        assert mode(tmp_path / "nfs" / "run" / copied) == mode(tmp_path / "one" / copied)
        assert (tmp_path / "nfs" / "run" / "model" / "config.json").read_bytes() == b"{}"


def test_errors_name_the_place_and_no_credentials(bucket: Bucket, tmp_path: Path) -> None:
    query = bucket.uri("x").partition("?")[2]
    missing = Mirror(f"s3://testing:{SECRET}@nowhere/run?{query}", tmp_path / "one")
    missing.pull()
    fill(tmp_path / "one", {"run.log": b"{}"})
    with pytest.raises(StorageError, match=r"writing to s3://nowhere/run failed \([A-Z_]+\)") as refused:
        missing.push()
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError, match="the run directory is 's3://runs'") as whole:
        Mirror(f"s3://testing:{SECRET}@runs?{query}")
    assert SECRET not in str(whole.value)
    with pytest.raises(CorpusError, match=r"corpus\.source is 'nosuch://host/a'") as scheme:
        open_uri("corpus.source", f"nosuch://user:{SECRET}@host/a?token={SECRET}", CorpusError)
    assert SECRET not in str(scheme.value)


def test_a_place_is_one_whatever_its_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert shown("s3://a:b@bucket/run/?x=1#y") == "s3://bucket/run"
    assert shown("/data/chats.parquet") == "/data/chats.parquet"
    same = ["s3://bucket/run", "s3://key:secret@bucket/run/", "s3://bucket/run?token=t"]
    assert len({identity(uri) for uri in same}) == 1
    assert identity(same[0]) != identity("s3://bucket/run?endpoint_override=other")
    assert default_folder(same[0]).parent == tmp_path / "rayprivacy" / "runs"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ".ssh/key", "a//b", ""])
def test_a_manifest_never_leads_out_of_the_folder(name: str) -> None:
    entry = Entry(1, "ab" * 32, 0o644)
    assert Manifest.parse(Manifest({"a/b": entry}).to_bytes()).files == {"a/b": entry}
    with pytest.raises(ValueError, match="manifest"):
        Manifest.parse(Manifest({name: entry}).to_bytes())
    with pytest.raises(ValueError, match="manifest"):
        Manifest.parse(Manifest(published={name: "ab" * 32}).to_bytes())
    with pytest.raises(ValueError, match="manifest"):
        Manifest.parse(Manifest({"a": Entry(1, "../../secret", 0o644)}).to_bytes())


def test_an_unreadable_manifest_is_one_sentence(bucket: Bucket, place: str, tmp_path: Path) -> None:
    for damage in (b"{", b"[]", b'{"format": 2, "files": {}, "published": {}}', b"\xff"):
        bucket.write(f"{place}/manifest.json", damage)
        with pytest.raises(StorageError, match="cannot be read"):
            Mirror(bucket.uri(place), tmp_path / "one").pull()
