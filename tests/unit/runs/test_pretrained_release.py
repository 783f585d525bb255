"""What is made of public text before the steps, pretrained models and scales of layers, is part of what is charged."""

import json
import operator
import os
import shutil
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from toy_bench import QUIET

from rayprivacy.blocks import pretrain as pretraining
from rayprivacy.blocks import steps as training
from rayprivacy.blocks.steps import Training, layer_scales
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import FileEntry, ShardManifest
from rayprivacy.corpus.users import Dropped
from rayprivacy.dpsgd.units import Reading
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.account import open_account
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import FOUND, RUN_LOG, Run
from rayprivacy.runs.progress import ProgressGauges

ENTRY = FileEntry(0, "part.parquet", 1, 1, "0" * 64, "0" * 64)
STAGE, STEPS = "DP-SGD", {"noise_multiplier": 4.0, "steps": 2}
PUBLIC_TEXT = "\n".join(["text", *(f"hello number {each} of the bread" for each in range(12))])
CORPUS = ShardManifest("", 1, 1, 1, 0.0, (ENTRY,), ENTRY, Dropped(0, 0, 0, 0, 0))


@contextmanager
def _opened(folder, base, out, **blocks):
    (folder / "key").touch()  # a run is resumed with the key file that it began with
    ledger, key = f"sqlite:///{folder}/ledger.db", str(folder / "key")
    shared = {"method": "generator", "model": {"base": str(base), "dtype": "float32"}}
    shared |= {"privacy": {"ledger": ledger, "epsilon": 8.0, "key": key}, "training": STEPS}
    recipe: Any = parse_recipe(shared | blocks)
    plan, run = method_of(recipe).planned(recipe), Run.open(folder / out, recipe, resume=True, console=QUIET)
    progress = ProgressGauges(recipe.release_id, {"pretraining_steps": 1}, shown=False)
    with closing(open_account(recipe, plan)) as ledger:
        context = RunContext(run, plan, lambda: ledger, Key.for_tests(), progress)
        context.corpus = CORPUS
        reading = Reading(recipe.privacy.unit, (), str, 8)
        yield context, Training(reading, recipe.adapter, recipe.training, recipe.resources)


def _inputs(folder, base, out):
    block = {"source": str(folder / "public.csv"), "steps": 1, "batch": 1, "max_tokens": 16}
    with _opened(folder, base, out, pretrain=block) as (context, trained):
        pretraining.load_model(context)
        return context.recipe.release_id, training._named(context, STAGE, trained).inputs


def _scaled(folder, base, out, block):
    """The scales of a run, what its certificate says of them, and the inputs that its steps are named by."""
    steps = STEPS | {"max_tokens": 16, "layer_scale": block}
    with _opened(folder, base, out, adapter={"kind": "full"}, training=steps) as (context, trained):
        context.load_model()
        scales = layer_scales(context, STAGE, context.recipe.training, context.recipe.adapter, None)
        return scales, " ".join(context.public_inputs), training._named(context, STAGE, trained, scales).inputs


@pytest.fixture
def public_text(tmp_path, one_thread):
    path = tmp_path / "public.csv"
    path.write_text(PUBLIC_TEXT)
    return path


def _model(run):
    (folder,) = [path for path in (run / "public").glob("pretrained-*") if path.is_dir()]
    return folder


def test_other_public_text_is_another_input_of_the_release(tmp_path, tiny_base, public_text):
    release, inputs = _inputs(tmp_path, tiny_base, "one")
    assert _inputs(tmp_path, tiny_base, "elsewhere/two") == (release, inputs), "a repeated run is served"
    public_text.write_text("\n".join(["text", *public_text.read_text().splitlines()[:0:-1], "and one more"]))
    again, others = _inputs(tmp_path, tiny_base, "three")
    assert again == release
    assert others != inputs


def _of_base(folder, base, out):
    with _opened(folder, base, out) as (context, trained):
        context.load_model()
        return context.recipe.release_id, training._named(context, STAGE, trained).inputs


def test_another_tokenizer_is_another_input_and_a_run_is_held_to_its_own(tmp_path, tiny_base, one_thread):
    """Weights say nothing of it. Equal names would be equal noise, under which a refusal tells whether users differ."""
    base = shutil.copytree(tiny_base, tmp_path / "base")
    release, inputs = _of_base(tmp_path, base, "one")
    assert _of_base(tmp_path, base, "two") == (release, inputs)
    rules = json.loads((base / "tokenizer.json").read_text())
    (base / "tokenizer.json").write_text(json.dumps(rules | {"normalizer": {"type": "Lowercase"}}))
    again, others = _of_base(tmp_path, base, "three")
    assert again == release
    assert others != inputs
    with pytest.raises(ConfigError, match=r"the tokenizer of .* changed since the run began"):
        _of_base(tmp_path, base, "one")


def _found(run):
    events = [json.loads(line) for line in (run / RUN_LOG).read_text().splitlines()]
    return [line["stage"] for line in events if line["event"] == FOUND]


def test_a_run_beside_it_shares_the_model(tmp_path, tiny_base, public_text, monkeypatch):
    of_one = _inputs(tmp_path, tiny_base, "one")
    trained = Mock(side_effect=pretraining.pretrained)
    monkeypatch.setattr(pretraining, "pretrained", trained)
    assert _inputs(tmp_path, tiny_base, "two") == of_one
    assert trained.call_count == 0
    one, two = (_model(tmp_path / name) for name in ("one", "two"))
    card = (one / "README.md").read_text()
    for path in one.iterdir():
        assert path.samefile(two / path.name) == (path.name != "README.md"), path.name
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    assert one.with_suffix(".json").read_text() == two.with_suffix(".json").read_text()
    assert _found(tmp_path / "two") == ["pretraining"]
    before = load_backbone(ModelConfig(base=str(two))).digest
    shutil.rmtree(tmp_path / "one")
    assert load_backbone(ModelConfig(base=str(two))).digest == before, "it outlives the other run"
    assert (two / "README.md").read_text() == card, "both are of one release"
    public_text.write_text(public_text.read_text() + "\nand one more")
    _inputs(tmp_path, tiny_base, "three")
    assert trained.call_count == 1, "other text is another model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_base):
    """A folder with a run `one` that has pretrained its model, and its inputs."""
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "public.csv").write_text(PUBLIC_TEXT)
    return folder, _inputs(folder, tiny_base, "one")


@pytest.mark.parametrize("damage", ["no figures", "half a model", "another owner", "another disk"])
def test_what_cannot_be_shared_is_trained(trained, tiny_base, monkeypatch, damage):
    (folder, of_one), two = trained, f"{damage}/two"
    (folder / damage).mkdir()
    shutil.copytree(folder / "one", folder / damage / "one")
    one = _model(folder / damage / "one")
    if damage == "no figures":
        one.with_suffix(".json").unlink()
    elif damage == "half a model":
        one.rename(one.with_name(f".{one.name}.tmp"))
    elif damage == "another owner":
        monkeypatch.setattr(os, "getuid", lambda: one.stat().st_uid + 1)
    else:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError("another disk")))
    assert _inputs(folder, tiny_base, two) == of_one
    assert _found(folder / two) == []
    assert not list((folder / two / "public").glob(".pretrained-*"))


@pytest.mark.usefixtures("one_thread")
def test_scales_are_those_of_the_public_text_and_part_of_the_inputs(tmp_path, tiny_base):
    public = tmp_path / "public.csv"
    public.write_text("text\nhello number one of the bread\nthe cat sat on my mat\n")
    block = {"from": "public", "source": str(public)}
    scales, said, inputs = _scaled(tmp_path, tiny_base, "one", block)
    assert max(scales.values()) == 1.0
    assert min(scales.values()) >= 0.01
    assert len(set(scales.values())) > 5
    assert "the scales of layers in 'DP-SGD' have digest" in said
    assert _scaled(tmp_path, tiny_base, "one", block) == (scales, said, inputs), "a resumed run keeps its scales"
    assert _scaled(tmp_path, tiny_base, "two", block) == (scales, said, inputs), "a repeated run is served"
    public.write_text("text\nsomething else entirely is written here\n")
    others = _scaled(tmp_path, tiny_base, "three", block)
    assert not any(map(operator.eq, others, (scales, said, inputs)))
    public.write_text("text\n")
    with pytest.raises(ConfigError, match=r"layer_scale\.source"):
        _scaled(tmp_path, tiny_base, "four", block)
    of_weights, said, inputs = _scaled(tmp_path, tiny_base, "weights", {"from": "weights"})
    assert max(of_weights.values()) == 1.0
    assert said.endswith("from weights.")
    nothing = _scaled(tmp_path, tiny_base, "none", None)
    assert nothing[:2] == ({}, "")
    assert nothing[2] != inputs
