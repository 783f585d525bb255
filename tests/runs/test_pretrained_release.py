"""Models that were pretrained on different text never share a release: both would carry the same noise."""

from pathlib import Path

from rich.console import Console

from rayprivacy.core.keys import Key
from rayprivacy.corpus.bounding import Dropped
from rayprivacy.corpus.manifest import FileEntry, ShardManifest
from rayprivacy.dpsgd.units import Reading
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.runs import training
from rayprivacy.runs.account import open_account
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.progress import ProgressGauges
from rayprivacy.runs.sampled_steps import sampled_steps
from rayprivacy.runs.training import Training

ENTRY = FileEntry(0, "part.parquet", 1, 1, "0" * 64, "0" * 64)
CORPUS = ShardManifest("", 1, 1, 1, 0.0, (ENTRY,), ENTRY, Dropped(0, 0, 0, 0, 0))


def _inputs(folder: Path, base: Path, out: str) -> tuple[str, str]:
    """Release id and input digest of the steps, of one corpus and account, after pretraining."""
    block = {"source": str(folder / "public.csv"), "steps": 1, "batch": 1, "max_tokens": 16}
    recipe = parse_recipe(
        {
            "method": "generator",
            "model": {"base": str(base), "dtype": "float32"},
            "privacy": {"ledger": f"sqlite:///{folder}/ledger.db", "epsilon": 8.0},
            "training": {"noise_multiplier": 4.0, "steps": 2},
            "pretrain": block,
        }
    )
    plan, run = (
        method_of(recipe).planned(recipe),
        Run.open(folder / out, recipe, resume=True, console=Console(quiet=True)),
    )
    progress = ProgressGauges(recipe.release_id, {"pretraining_steps": 1}, shown=False)
    ledger = open_account(recipe, plan)
    context = RunContext(run, plan, ledger, Key.for_tests(), progress)
    context.corpus = CORPUS
    context.load_model(recipe.pretrain)  # type: ignore[attr-defined]
    steps, reading = recipe.training, Reading(recipe.privacy.unit, (), str, 8)  # type: ignore[attr-defined]
    trained = Training(sampled_steps(steps, recipe.privacy), reading, recipe.adapter, steps, recipe.resources)  # type: ignore[attr-defined]
    release = training._named(context, "DP-SGD", trained)
    ledger.close()
    return recipe.release_id, release.inputs


def test_other_public_text_is_another_input_of_the_release(tmp_path: Path, tiny_base: Path, one_thread: None) -> None:
    lines = [f"hello number {each} of the bread" for each in range(12)]
    (tmp_path / "public.csv").write_text("\n".join(["text", *lines]))
    release, inputs = _inputs(tmp_path, tiny_base, "one")
    assert _inputs(tmp_path, tiny_base, "two") == (release, inputs), "a repeated run is served"
    (tmp_path / "public.csv").write_text("\n".join(["text", *lines[::-1], "and one more"]))
    again, others = _inputs(tmp_path, tiny_base, "three")
    assert again == release
    assert others != inputs
