"""A run directory in object storage: what a reader sees, what stays out, and what two writers get. Against real S3."""

import itertools
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import SECRET, Bucket, serving

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


def everywhere(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


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
    assert pushed(bucket.uri(place), tmp_path / "three", {"run.log": b"more"}).holds_run(), "resumed without them"
    assert pulled(bucket.uri(place), tmp_path / "three", private=True) == RUN | {"run.log": b"more"}, "asked for later"


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
    assert bucket.names(place) == expected.keys() | {"manifest.json"}
    assert all(bucket.read(f"{place}/{name}") == data for name, data in expected.items()), "under their own names"
    before = {name: bucket.files.get_file_info(f"runs/{place}/{name}").mtime_ns for name in bucket.names(place)}
    mirror.push()
    after = {name: bucket.files.get_file_info(f"runs/{place}/{name}").mtime_ns for name in bucket.names(place)}
    assert before == after, "nothing travels when nothing changed"


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(moment: int, monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> bool:
    """Push, and stop before the store is changed for the n-th time; False if there are fewer changes than that."""
    calls = itertools.count()

    def watched(original: Any) -> Any:
        def act(self: Store, *args: Any) -> Any:
            if self is mirror._store and next(calls) >= moment:
                raise Killed
            return original(self, *args)

        return act

    with monkeypatch.context() as patch:
        for name in ("write", "delete"):
            patch.setattr(Store, name, watched(getattr(Store, name)))
        try:
            mirror.push()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("machine", ["one", "two"])
def test_a_push_killed_anywhere_leaves_one_whole_state_and_any_machine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
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
        assert {name for name in everywhere(root / "store") if not name.startswith("manifest")} == expected.keys()
        if not killed:
            break
    assert seen == sorted(seen, key=lambda state: state == after), "the state changes once"
    assert before in seen
    assert len(seen) > 8


def test_a_killed_process_leaves_the_state_before_and_goes_on(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN)
    fill(tmp_path / "one", {"run.log": b"later", "synthetic.parquet": b"later too"})
    code = f"""
import os, signal
from pathlib import Path
from rayprivacy.core.storage import Mirror
mirror = Mirror({bucket.uri(place)!r}, Path({str(tmp_path / "one")!r}))
mirror.pull()
replace = mirror._replace
mirror._replace = lambda manifest: os.kill(os.getpid(), signal.SIGKILL) if "synthetic.parquet" in manifest.files else (
    replace(manifest))
mirror.push()
"""
    before = bucket.names(place)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(bucket.names(place) - before) == 2, "the new contents should have been there"
    assert pulled(bucket.uri(place), tmp_path / "two") == {name: RUN[name] for name in SHARED}
    # The folder that is ahead goes on; what is needed no more goes, also when a push was cut off.
    (tmp_path / "one" / "synthetic.parquet").unlink()
    mirror = Mirror(bucket.uri(place), tmp_path / "one")
    mirror.pull()
    assert (tmp_path / "one" / "run.log").read_bytes() == b"later"
    mirror.push()
    assert b"later too" not in bucket.everything(place)
    assert pulled(bucket.uri(place), tmp_path / "two")["run.log"] == b"later"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_the_second_of_two_writers_stops(
    bucket: Bucket, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    """Whether the other wrote before the push, or while files were on their way."""
    uri = bucket.uri(f"{place}-{meanwhile}")
    pushed(uri, tmp_path / "start", RUN)
    first, second = (Mirror(uri, tmp_path / name) for name in ("first", "second"))
    first.pull()
    second.pull()

    def go_first(*_: object) -> None:
        monkeypatch.undo()
        first.pull()
        fill(tmp_path / "first", {"run.log": b"first"})
        first.push()

    fill(tmp_path / "second", {"run.log": b"second"})
    if meanwhile:
        monkeypatch.setattr(second, "_put", go_first)
    else:
        go_first()
    before = bucket.everything(f"{place}-{meanwhile}")
    with pytest.raises(StorageError, match=r"another process has written to s3://runs/jobs/.* --resume") as refused:
        second.push()
    assert "endpoint" not in str(refused.value)
    assert meanwhile or bucket.everything(f"{place}-{meanwhile}") == before
    assert pulled(uri, tmp_path / "third")["run.log"] == b"first"


def test_a_folder_behind_the_store_becomes_what_the_store_is(bucket: Bucket, place: str, tmp_path: Path) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN)
    pushed(bucket.uri(place), tmp_path / "two", {"run.log": b"of two"})
    fill(tmp_path / "one", {"run.log": b"unpushed", "synthetic.parquet": b"unpushed"})
    found = pulled(bucket.uri(place), tmp_path / "one")
    assert found["run.log"] == b"of two"
    assert "synthetic.parquet" not in found
    assert found.keys() >= RUN.keys() - SHARED, "private files stay where they are"


def test_a_file_that_is_not_what_the_manifest_says_is_refused_and_does_not_appear(
    bucket: Bucket, place: str, tmp_path: Path
) -> None:
    pushed(bucket.uri(place), tmp_path / "one", {"run.log": b"right"})
    bucket.write(f"{place}/run.log", b"wrong")
    with pytest.raises(StorageError, match=r"run\.log in s3://runs/jobs/\w+ is not what its manifest says"):
        pulled(bucket.uri(place), tmp_path / "two")
    assert content(tmp_path / "two") == {}


def test_forgotten_private_files_are_gone_with_what_a_killed_push_left(
    bucket: Bucket, place: str, tmp_path: Path
) -> None:
    pushed(bucket.uri(place), tmp_path / "one", RUN, private=True)
    for name in (f".next/{'ab' * 32}", "private/teachers/1"):
        bucket.write(f"{place}/{name}", b"the cat sat, left by a killed push")
    mirror = Mirror(bucket.uri(place), tmp_path / "elsewhere")
    mirror.pull()
    assert mirror.forget_private() == 2
    stored = bucket.everything(place)
    assert b"the cat sat" not in stored
    assert b"private/" not in stored
    assert pulled(bucket.uri(place), tmp_path / "two", private=True).keys() == SHARED
    bucket.write(f"{place}/.next/{'ab' * 32}", b"the cat sat, left by another push")
    assert mirror.forget_private() == 0
    assert b"the cat sat" not in bucket.everything(place)


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


def test_a_folder_of_files_is_a_store_too(tmp_path: Path) -> None:
    store = tmp_path / "nfs" / "run"
    pushed(store.as_uri(), tmp_path / "one", RUN, private=True)
    assert pulled(store.as_uri(), tmp_path / "two", private=True) == RUN
    assert {mode(folder) for folder in (store, *store.rglob("*")) if folder.is_dir()} == {0o700}
    assert mode(store / "manifest.json") == 0o600
    assert mode(store / "model/config.json") == mode(tmp_path / "one" / "model/config.json")


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
    entry = {"size": 1, "sha256": "ab" * 32, "mode": 0o644}
    assert Manifest.model_validate({"format": 2, "files": {"a/b": entry}, "loose": ["a/b"]}).files.keys() == {"a/b"}
    refused: list[dict[str, Any]] = [
        {"files": {name: entry}},
        {"loose": [name]},
        {"files": {"a": entry | {"sha256": "../../secret"}}},
        {"format": 1},
    ]
    for manifest in refused:
        with pytest.raises(ValueError, match="Manifest"):
            Manifest.model_validate({"format": 2} | manifest)


def test_an_unreadable_manifest_is_one_sentence(bucket: Bucket, place: str, tmp_path: Path) -> None:
    for damage in (b"{", b"[]", b'{"format": 1, "files": {}, "published": {}}', b"\xff"):
        bucket.write(f"{place}/manifest.json", damage)
        with pytest.raises(StorageError, match="cannot be read"):
            Mirror(bucket.uri(place), tmp_path / "one").pull()
