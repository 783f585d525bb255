"""Cached states come back to the last bit or not at all, and give nothing away on disk."""

import json
import os
import pickle
import stat
import time
from itertools import pairwise

import pytest
import torch

from rayprivacy.core.errors import KeyFileError, ShardError
from rayprivacy.core.files import TABLE, Journal
from rayprivacy.core.keys import create_key
from rayprivacy.models import store
from rayprivacy.models.features import Encoded
from rayprivacy.models.store import FeatureStore

ROW, WIDTH = 16, 24
RECIPE = "0123456789abcdef" * 4
TEXTS = {"ann": ["a private thing", "and another"], "bob": ["my own words"], "cy": []}


def encoded(seed, rows=3):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(50_000, (rows, ROW), generator=draw)
    segment = torch.randint(-1, 4, (rows, ROW), generator=draw)
    return Encoded(ids, segment, torch.randn(rows, ROW, WIDTH, generator=draw).bfloat16())


def same(one, two):
    pairs = [(getattr(one, name), getattr(two, name)) for name in ("ids", "segment", "hidden")]
    return all(ours.dtype == theirs.dtype and torch.equal(ours, theirs) for ours, theirs in pairs)


def forget():
    """What a fresh process knows."""
    store._open.cache_clear()
    store._key.cache_clear()


@pytest.fixture
def kept(tmp_path):
    create_key(tmp_path / "key")
    found = FeatureStore(tmp_path / "features", RECIPE, tmp_path / "key")
    found.prepare()
    return found


@pytest.fixture
def groups(kept):
    return {kept.name(texts): encoded(seed, seed + 1) for seed, texts in enumerate(TEXTS.values())}


def files(kept, suffix=""):
    return sorted(path for path in kept.folder.iterdir() if path.name.endswith(suffix))


def only(kept, suffix):
    (found,) = files(kept, suffix)
    return found


def lines(kept):
    return [json.loads(line) for line in only(kept, ".jsonl").read_text().splitlines()]


def test_groups_come_back_in_any_order(kept, groups):
    groups = groups | {kept.name(["no row"]): Encoded.empty(ROW, WIDTH)}
    kept.write(groups)
    kept.write({})
    assert len(files(kept)) == 2
    for names in (list(groups), list(groups)[::-1], [list(groups)[1]] * 2, []):
        for _ in range(2):
            found = kept.read(names)
            assert len(found) == len(names)
            assert all(same(one, groups[name]) for one, name in zip(found, names, strict=True))
        forget()
    # A read maps the file and touches its own rows.
    kept.write(groups)
    (found,) = kept.read(list(groups)[:1])
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if only(kept, ".safetensors").name in line]
    assert mapped
    assert all(line.split()[1][1] == "-" or line.split()[1][3] == "p" for line in mapped), "the file is never written"
    assert len(found) == 1


def test_what_is_missing(kept, groups):
    first, second, third = groups
    assert kept.missing([third, first, third]) == [third, first]
    kept.write({first: groups[first]})
    assert kept.missing([third, first, second]) == [third, second]
    with pytest.raises(ShardError, match=r"^cached features .* are missing: run again with --resume\.$"):
        kept.read([first, second])
    other = pickle.loads(pickle.dumps(kept))
    other.write({second: groups[second]})
    assert same(kept.read([second])[0], groups[second])
    known = kept._chunks
    forget()  # what another process writes later is seen
    kept.write({third: groups[third]})
    known.scan()
    assert None not in known.find([first, second, third])


def test_names_are_keyed(kept, tmp_path):
    create_key(tmp_path / "other")
    names = {
        FeatureStore(kept.root, recipe, key).name(texts)
        for recipe in (RECIPE, "f" * 64)
        for key in (kept.key_path, tmp_path / "other")
        for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [])
    }
    assert len(names) == 20
    with pytest.raises(KeyFileError, match="does not exist"):
        FeatureStore(tmp_path / "features", RECIPE, tmp_path / "none").prepare()
    assert kept.name(["ab", "c"]) == kept.name(("ab", "c"))


def test_the_folder_is_for_the_owner_and_says_nothing(kept, groups):
    kept.write(groups)
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.folder.iterdir()} == {0o600}
    assert kept.folder.name == RECIPE[:16]
    for path in files(kept):
        assert store._OWN.fullmatch(path.name) or TABLE.fullmatch(path.name)
        assert not any(text.encode() in path.read_bytes() for text in ("ann", "private", "words"))
    (body,) = lines(kept)
    assert set(body) == {"file", "sha256", "row_tokens", "width", "groups", "seal"}
    assert body["groups"] == [[name, *ends] for name, ends in zip(groups, pairwise((0, 1, 3, 6)), strict=True)]
    kept.read(list(groups))
    data = pickle.dumps(kept)
    assert len(data) < 600
    assert kept.key_path.read_bytes() not in data
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(kept._chunks)


@pytest.mark.parametrize("damage", [0, 20, -1, "cut short", "gone"])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_changed_file_is_refused_and_computed_anew(kept, groups, damage, fresh):
    kept.write(groups)
    kept.read(list(groups)[:1])
    if fresh:
        forget()
    path = only(kept, ".safetensors")
    data = bytearray(path.read_bytes())
    if isinstance(damage, int):
        data[damage] ^= 1
    path.write_bytes(bytes(data[:-3] if damage == "cut short" else data))
    if damage == "gone":
        path.unlink()
    said = "^cached features .* are missing" if (damage, fresh) == ("gone", True) else "^a file .* was damaged"
    with pytest.raises(ShardError, match=rf"{said}.*--resume\.$") as caught:
        kept.read(list(groups)[:1])
    assert caught.value.__context__ is None
    assert files(kept) == files(kept, ".jsonl")
    assert kept.missing(list(groups)) == list(groups)
    kept.write(groups)
    assert all(map(same, kept.read(list(groups)), groups.values()))


@pytest.mark.parametrize("change", ["rows", "name", "digest", "other file", "json"])
def test_a_changed_line_is_no_line(kept, groups, change):
    kept.write(groups)
    path, (body,) = only(kept, ".jsonl"), lines(kept)
    kept.write({kept.name(["x"]): encoded(9)})
    (first, *_), (second, *_), _ = body["groups"]
    body |= {
        "rows": {"groups": [[first, 0, 2], *body["groups"][1:]]},
        "name": {"groups": [[second, 0, 1], [first, 1, 3], body["groups"][2]]},
        "digest": {"sha256": "0" * 64},
        "other file": {"file": lines(kept)[1]["file"]},
        "json": {},
    }[change]
    path.write_text(("[1, {" if change == "json" else json.dumps(body)) + "\n")
    forget()
    assert kept.missing(list(groups)) == list(groups)
    kept.write(groups)
    assert all(map(same, kept.read(list(groups)), groups.values()))


def test_a_half_written_chunk_is_ignored_and_swept(kept, groups, monkeypatch):
    def killed(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            kept.write(groups)
    (kept.folder / f".{only(kept, '.safetensors').name}.77").write_bytes(b"half")
    assert kept.missing(list(groups)) == list(groups)
    kept.prepare()
    assert len(files(kept)) == 2, "somebody may be writing them right now"
    (kept.folder / "notes.txt").touch()
    kept.write({kept.name(["x"]): encoded(9)})
    long_ago = time.time() - 2 * store.STALE_S
    for path in files(kept):
        os.utime(path, (long_ago, long_ago))
    kept.prepare()
    assert len(files(kept)) == 3, "a whole chunk, the table and the foreign file stay"
    assert kept.missing([kept.name(["x"])]) == []


def test_two_writers_of_one_group(kept):
    """Machines may differ in the last bit: every process must take the same of two whole chunks."""
    name, ours, theirs = kept.name(["a"]), encoded(1), encoded(2)
    kept.write({name: ours})
    kept.write({name: ours})
    kept.write({name: theirs})
    assert len({line["file"] for line in lines(kept)}) == 2
    seen = []
    for order in (list, reversed):
        forget()
        for line in order(lines(kept)):
            kept._chunks._learn(line)
        seen.append(kept._chunks.find([name])[0])
    assert seen[0] == seen[1]
    assert same(kept.read([name])[0], ours) or same(kept.read([name])[0], theirs)


def test_clear_deletes_the_store_and_nothing_else(kept, groups):
    kept.write(groups)
    (kept.folder / "notes.txt").write_text("mine")
    with pytest.raises(ShardError, match="not cached features: move them away"):
        kept.clear()
    assert len(files(kept)) == 3
    (kept.folder / "notes.txt").unlink()
    kept.clear()
    assert not kept.folder.exists()
    assert kept.missing(list(groups)) == list(groups)
    kept.clear()
