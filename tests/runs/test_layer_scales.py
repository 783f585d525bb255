"""Scales of layers in a run: made once from public text, named in the certificate, and part of what is charged."""

from pathlib import Path

import pytest
from rich.console import Console

from rayprivacy.blocks import steps as training
from rayprivacy.blocks.steps import Training, layer_scales
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import FileEntry, ShardManifest
from rayprivacy.corpus.users import Dropped
from rayprivacy.dpsgd.units import Reading
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.runs.account import open_account
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.progress import ProgressGauges

ENTRY = FileEntry(0, "part.parquet", 1, 1, "0" * 64, "0" * 64)
CORPUS = ShardManifest("", 1, 1, 1, 0.0, (ENTRY,), ENTRY, Dropped(0, 0, 0, 0, 0))
STAGE = "DP-SGD"


def _scaled(folder: Path, base: Path, out: str, block: dict[str, str] | None) -> tuple[dict[str, float], str, str]:
    """The scales of a run, what its certificate says of them, and the inputs that its steps are named by."""
    recipe = parse_recipe(
        {
            "method": "generator",
            "model": {"base": str(base), "dtype": "float32"},
            "adapter": {"kind": "full"},
            "privacy": {"ledger": f"sqlite:///{folder}/ledger.db", "epsilon": 8.0, "key": str(folder / "key")},
            "training": {"noise_multiplier": 4.0, "steps": 2, "max_tokens": 16, "layer_scale": block},
        }
    )
    (folder / "key").touch()  # a run is resumed with the key file that it began with
    plan = method_of(recipe).planned(recipe)
    run = Run.open(folder / out, recipe, resume=True, console=Console(quiet=True))
    ledger = open_account(recipe, plan)
    context = RunContext(run, plan, ledger, Key.for_tests(), ProgressGauges(recipe.release_id, {}, shown=False))
    context.corpus = CORPUS
    context.load_model()
    steps, reading = recipe.training, Reading(recipe.privacy.unit, (), str, 8)  # type: ignore[attr-defined]
    trained = Training(reading, recipe.adapter, steps, recipe.resources)  # type: ignore[attr-defined]
    scales = layer_scales(context, STAGE, steps, recipe.adapter, None)  # type: ignore[attr-defined]
    named = training._named(context, STAGE, trained, scales).inputs
    ledger.close()
    return scales, " ".join(context.public_inputs), named


@pytest.mark.usefixtures("one_thread")
def test_scales_are_those_of_the_public_text_and_part_of_the_inputs(tmp_path: Path, tiny_base: Path) -> None:
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
    others, other_said, other_inputs = _scaled(tmp_path, tiny_base, "three", block)
    assert others != scales
    assert other_said != said
    assert other_inputs != inputs
    public.write_text("text\n")
    with pytest.raises(ConfigError, match=r"layer_scale\.source"):
        _scaled(tmp_path, tiny_base, "four", block)


@pytest.mark.usefixtures("one_thread")
def test_scales_of_the_weights_and_none(tmp_path: Path, tiny_base: Path) -> None:
    scales, said, inputs = _scaled(tmp_path, tiny_base, "weights", {"from": "weights"})
    assert max(scales.values()) == 1.0
    assert said.endswith("from weights.")
    assert _scaled(tmp_path, tiny_base, "none", None)[:2] == ({}, "")
    assert _scaled(tmp_path, tiny_base, "none", None)[2] != inputs
