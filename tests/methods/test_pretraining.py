"""Pretraining on public text: another base model for the whole run, and the same charges. Whole runs: end to end."""

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from small_jobs import Job

import rayprivacy as rp
from rayprivacy.methods.generator import method as generator_method
from rayprivacy.methods.registry import load_recipe, method_of, parse_recipe
from rayprivacy.models.backbone import load_backbone

QUIET = Console(quiet=True)
BOTH = pytest.mark.parametrize("name", ["seqpate", "generator"])


class _StoppedError(Exception):
    pass


def _stop(*_: object) -> None:
    raise _StoppedError


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_base_writes_its_own_text_behind_public_prompts(
    generator: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, recipe, out = tmp_path / "prompts.txt", yaml.safe_load(generator.recipe.read_text()), tmp_path / "out"
    prompts.write_text("the bread\nwe eat\n")
    block = {"prompts": str(prompts), "texts": 24, "steps": 2, "batch": 4, "max_tokens": 16}
    generator.recipe.write_text(yaml.safe_dump({**recipe, "pretrain": block}))
    loaded = load_recipe(generator.recipe)
    monkeypatch.setattr(generator_method, "_shares", _stop)  # what comes after it
    with pytest.raises(_StoppedError):
        rp.run(loaded, out, console=QUIET)
    (kept,) = (out / "public").glob("own-documents-*.json")
    before, documents = kept.stat().st_mtime_ns, json.loads(kept.read_text())
    assert len(documents) == 24
    base = load_backbone(loaded.model)
    assert all(base.text(document).startswith(("the bread", "we eat")) for document in documents)
    prompts.write_text("the cake\n")
    with pytest.raises(rp.ConfigError, match=r"the pretraining text of .* changed since the run began"):
        rp.run(loaded, out, console=QUIET)
    prompts.write_text("the bread\nwe eat\n")
    with pytest.raises(_StoppedError):
        rp.run(loaded, out, console=QUIET)
    assert kept.stat().st_mtime_ns == before, "what was written is found"
    (folder,) = [path for path in (out / "public").glob("pretrained-*") if path.is_dir()]
    assert Path(load_recipe(out / "recipe.yaml").on_its_base(out).model.base) == folder, "what audits find"
    assert generator.kinds() == ["create"]


@BOTH
def test_the_block_is_part_of_the_release_and_a_stage_that_charges_nothing(name: str) -> None:
    values = {"method": name, "corpus": {"source": "chats.parquet"}}
    plain = parse_recipe(values)
    recipe = parse_recipe({**values, "pretrain": {"source": "public.parquet"}})
    own = parse_recipe({**values, "pretrain": {"prompts": "prompts.txt", "texts": 50}})
    plan, written, before = (method_of(each).planned(each) for each in (recipe, own, plain))
    for stage in (plan.stages[0], written.stages[0]):
        assert (stage.name, stage.reads, stage.charges) == ("pretraining", "public text", ())
    assert plan.charges == written.charges == before.charges
    assert plan.stages[1:] == before.stages
    assert set(plan.assumptions) - set(before.assumptions)
    said = "was written by that model; the prompts before it (pretrain.prompts) are public"
    assert any(said in assumption for assumption in written.assumptions)
    own_text = written.stages[0]
    assert {work.what: work.total for work in own_text.work} == {"own_texts_written": 50, "pretraining_steps": 100}
    assert len(own_text.efforts) == len(plan.stages[0].efforts) + 1 > 1
    assert "50 texts that the base model writes" in own_text.detail


@BOTH
def test_other_public_text_is_another_release(name: str) -> None:
    changes: tuple[dict[str, int], ...] = ({}, {"texts": 50}, {"text_tokens": 8}, {"text_tokens": 9}, {"sentences": 1})
    own = [{"prompts": "prompts.txt", **change} for change in changes]
    blocks = [None, {"source": "public.csv"}, {"source": "public.csv", "steps": 101}, *own]
    assert len({parse_recipe({"method": name, "pretrain": block}).release_id for block in blocks}) == len(blocks)


@pytest.mark.parametrize(
    ("name", "block", "says"),
    [
        ("seqpate", {"source": "none.csv"}, r"pretrain\.source is '.*none\.csv', which does not exist"),
        ("generator", {"source": "nine.csv", "text": "body"}, r"pretrain\.text is 'body', which is not a column"),
        ("seqpate", {"source": "nine.csv"}, r"pretrain\.source has 9 texts that are not empty: give at least 10"),
        ("generator", {"source": "nine.csv"}, r"pretrain\.source has 9 texts that are not empty: give at least 10"),
        ("generator", {"prompts": "none.txt"}, r"the prompts file .*none\.txt cannot be read"),
    ],
)
def test_public_text_that_cannot_be_used_is_refused_before_there_is_an_account(
    name: str, block: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nine.csv").write_text("text\n" + "\n".join(["hello"] * 9 + [" "] * 20))
    values = {"method": name, "privacy": {"ledger": f"sqlite:///{tmp_path}/ledger.db", "key": str(tmp_path / "key")}}
    with pytest.raises(rp.ConfigError, match=says):
        rp.run(parse_recipe({**values, "pretrain": block}), tmp_path / "out", console=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["nine.csv"]
