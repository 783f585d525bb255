"""Cleaning a run takes everything private and nothing else."""

import stat

import pytest
import torch
from commands import command

from rayprivacy.core.errors import ConfigError, ShardError
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.core.storage import Mirror
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models.features import Encoded
from rayprivacy.models.store import FeatureStore
from rayprivacy.runs.clean import STORES, clean_run, remember_store
from rayprivacy.runs.directory import Run

KEPT = ("recipe.yaml", "certificate.json", "synthetic.parquet", "ledger_head", "public/basis.safetensors")


@pytest.fixture
def run(tmp_path):
    found = Run.open(tmp_path / "run", SeqPateRecipe(), resume=False)
    for name in KEPT[1:]:
        (found.root / name).write_text("released")
    for name in ("shards/part-00000.parquet", "teachers/part-00000.done", "teachers/deep/file"):
        found.private(name).parent.mkdir(parents=True, exist_ok=True)
        found.private(name).write_text("x" * 1000)
    return found


def filled(root, key, recipe="a"):
    load_or_create_key(key)
    store = FeatureStore(root, recipe * 64, key)
    store.prepare()
    ids = torch.zeros(2, 8, dtype=torch.int64)
    store.write({store.name(["a"]): Encoded(ids, ids, torch.zeros(2, 8, 4, dtype=torch.bfloat16))})
    return store


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def files(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_private_results_go_and_public_ones_and_a_resumable_run_stay(run, tmp_path):
    store = filled(run.private("features"), tmp_path / "key")
    remember_store(run.root, store)
    expected = 3000 + size(store.folder)
    done = clean_run(run.root)
    assert (done.freed, done.left) == (expected, ())
    assert {path.name for path in done.deleted} == {"shards", "teachers", "features"}
    assert files(run.root) == set(KEPT)
    Run.open(run.root, run.recipe, resume=True)


def test_features_kept_elsewhere_go_too_and_those_of_other_runs_stay(run, tmp_path):
    ours, earlier, theirs = (filled(tmp_path / "shared", tmp_path / "key", letter) for letter in "abc")
    for store in (earlier, ours, ours):
        remember_store(run.root, store)
    assert stat.S_IMODE((run.root / "private" / STORES).stat().st_mode) == 0o600
    expected = 3000 + size(ours.folder) + size(earlier.folder)
    done = clean_run(run.root)
    assert done.freed == expected
    assert set(done.deleted) == {ours.folder, earlier.folder, run.private("shards"), run.private("teachers")}
    assert [path.name for path in (tmp_path / "shared").iterdir()] == [theirs.folder.name]
    assert theirs.missing([theirs.name(["a"])]) == []


def test_a_run_that_moved_takes_its_own_features(run, tmp_path):
    remember_store(run.root, filled(run.private("features"), tmp_path / "key"))
    moved = run.root.rename(tmp_path / "moved")
    theirs = filled(Run.open(run.root, run.recipe, resume=False).private("features"), tmp_path / "key")
    clean_run(moved)
    assert files(moved) == set(KEPT)
    assert theirs.missing([theirs.name(["a"])]) == []


def test_a_run_that_was_mirrored_to_another_machine_is_cleaned_there(run, tmp_path):
    run.private("stories/one").parent.mkdir()
    run.private("stories/one").write_text("a name that no older version had")
    uri = f"file://{tmp_path}/store"
    Mirror(uri, run.root, private=True).push()
    there = Mirror(uri, tmp_path / "there", private=True)
    there.pull()
    assert (there.root / "private" / "stories" / "one").exists()
    assert clean_run(there.root).left == ()
    assert files(there.root) >= set(KEPT)
    assert list((there.root / "private").iterdir()) == []


def test_what_no_run_made_is_left_and_links_are_not_followed(run, tmp_path):
    run.private("features").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=r"features is a link: .* then the link\.$"):
        clean_run(run.root)
    assert run.private("shards/part-00000.parquet").exists()
    run.private("features").unlink()
    mine = run.root / "private" / "secret.key"
    mine.write_text("mine")
    assert clean_run(run.root).left == (mine,)
    assert mine.exists()


def test_a_store_with_other_files_is_refused_before_anything_is_deleted(run, tmp_path):
    store = filled(tmp_path / "shared", tmp_path / "key")
    remember_store(run.root, store)
    (store.folder / "thesis.tex").write_text("mine")
    before = files(tmp_path)
    for named in (store.folder, tmp_path):
        (run.root / "private" / STORES).write_text(f"{named}\n")
        with pytest.raises(ShardError, match="move them away"):
            clean_run(run.root)
        assert files(tmp_path) == before


@pytest.mark.parametrize("made", ["", "folder", "folder/recipe.yaml", "folder/private/shards"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, made):
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    if made.endswith(".yaml"):
        (tmp_path / made).touch()
    else:
        (tmp_path / made).mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match="is no run directory: give one that"):
        clean_run(tmp_path / "folder")
    assert (tmp_path / made).exists()


def test_the_command_says_what_it_deleted(run, tmp_path):
    done = command(["clean", str(run.root)], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    deleted = [f"deleted {run.private(name)}" for name in ("shards", "teachers")]
    assert done.stdout.splitlines() == [*deleted, "3.0 kB freed"]
    assert command(["clean", str(run.root)], tmp_path).stdout == "nothing to delete\n"
    refused = command(["clean", str(tmp_path)], tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"rayprivacy: {tmp_path} is no run directory: give one that `rayprivacy run --out` made.\n"
