"""Pretraining on public text as its users run it: another base model for the whole run, and the same charges."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from safetensors.torch import load_file

import rayprivacy as rp
from rayprivacy.blocks import steps as training
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.generator import method as generator_method
from rayprivacy.methods.registry import load_recipe, method_of, parse_recipe
from rayprivacy.methods.seqpate import method as seqpate_method
from rayprivacy.models.backbone import load_backbone

QUIET = Console(quiet=True)


class _StoppedError(Exception):
    pass


def _stop(*_: Any) -> None:
    raise _StoppedError


def _with_public_text(job: Any, sentences: list[str]) -> Path:
    """The recipe of a job with a `pretrain` block, and the file that it names."""
    path, recipe = job.folder / "public.jsonl", yaml.safe_load(job.recipe.read_text())
    path.write_text("".join(json.dumps({"written": text}) + "\n" for text in sentences * 8))
    block = {"source": str(path), "text": "written", "steps": 30, "batch": 4, "max_tokens": 32, "learning_rate": 3e-3}
    job.recipe.write_text(yaml.safe_dump({**recipe, "pretrain": block}))
    return Path(path)


def _without(recipe: rp.Recipe) -> rp.Recipe:
    values = recipe.model_dump(mode="json")
    return parse_recipe({name: value for name, value in values.items() if name != "pretrain"})


def _charged(job: Any) -> list[Any]:
    ledger = Ledger.open(f"sqlite:///{job.folder}/ledger.db")
    ledger.verify()
    found = [charge.event for charge in ledger.charges_of("talk", load_recipe(job.recipe).release_id)]
    ledger.close()
    return found


def _folder(job: Any, out: str) -> Path:
    (folder,) = [path for path in (job.folder / out / "public").glob("pretrained-*") if path.is_dir()]
    return Path(folder)


def _is_of_the_pretrained_model(job: Any, out: str, base: Path) -> None:
    """Certificate, figures, and weights that no method trains."""
    run, folder, certificate = job.folder / out, _folder(job, out), job.certificate(out)
    inputs = json.loads((run / "public" / "inputs.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    name = (
        "model.layers.0.self_attn.q_proj.weight"
        if certificate["release_id"].startswith("seqpate")
        else ("model.embed_tokens.weight")
    )
    stood_on, released = load_file(folder / "model.safetensors"), load_file(run / "model" / "model.safetensors")
    assert released[name].equal(stood_on[name])
    assert not released[name].equal(load_file(base / "model.safetensors")[name])
    assert any(inputs["pretraining_text"] in sentence for sentence in certificate["assumptions"])
    assert certificate["versions"]["base model"] == f"{base} {inputs['base_model'][:16]}"
    assert certificate["versions"]["pretrained model"].endswith(inputs["pretrained_model"][:16])
    figures = metrics["synthetic"]["pretraining"]
    assert figures["loss_after"] < figures["loss_before"] - 0.5
    perplexity = metrics["heldout"]["perplexity"]
    assert perplexity["base"] != perplexity["pretrained"]
    afterwards = load_recipe(run / "recipe.yaml").on_its_base(run)
    assert load_backbone(afterwards.model).digest == inputs["pretrained_model"] != inputs["base_model"]
    assert "pretrain" not in afterwards.model_dump(mode="json")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_generator_starts_from_it_and_a_killed_run_does_not_train_it_again(
    generator: Any, public_sentences: list[str], tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _with_public_text(generator, public_sentences)
    recipe, text = load_recipe(generator.recipe), path.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(generator_method, "_shares", _stop)
        with pytest.raises(_StoppedError):
            rp.run(recipe, generator.folder / "out", console=QUIET)
    weights = _folder(generator, "out") / "model.safetensors"
    before = weights.stat().st_mtime_ns
    path.write_text(text.replace("soup", "cake"))
    with pytest.raises(rp.ConfigError, match=r"the pretraining text of .* changed since the run began"):
        rp.run(recipe, generator.folder / "out", console=QUIET)
    assert _charged(generator) == []
    path.write_text(text)
    jobs, real = [], training.run_training
    monkeypatch.setattr(training, "run_training", lambda job, *more: jobs.append(job) or real(job, *more))
    rp.run(recipe, generator.folder / "out", console=QUIET)
    assert weights.stat().st_mtime_ns == before
    assert [job.model.base for job in jobs] == [str(weights.parent)]
    assert _charged(generator) == rp.plan(_without(recipe)).plan.charges
    _is_of_the_pretrained_model(generator, "out", tiny_base)
    audited = generator.call("audit", str(generator.folder / "out"), "--users", "8")
    assert audited.returncode == 0, audited.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_teachers_and_a_lora_student_without_a_warm_start_start_from_it(
    job: Any, public_sentences: list[str], tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_public_text(job, public_sentences)
    student = {"kind": "lora", "layers": 1, "steps": 5, "warm_steps": 0}
    job.recipe.write_text(yaml.safe_dump({**yaml.safe_load(job.recipe.read_text()), "student": student}))
    specs, real = [], seqpate_method.cache_features
    monkeypatch.setattr(seqpate_method, "cache_features", lambda spec, *more: specs.append(spec) or real(spec, *more))
    assert job.run("out").returncode == 0
    assert [spec.model.base for spec in specs] == [str(_folder(job, "out"))]
    assert _charged(job) == rp.plan(_without(load_recipe(job.recipe))).plan.charges
    _is_of_the_pretrained_model(job, "out", tiny_base)
    page = (job.folder / "out" / "report.html").read_text()
    assert "Base model after pretraining" in page
    heldout = json.loads((job.folder / "out" / "metrics.json").read_text())["heldout"]
    for figures in (heldout["perplexity"], heldout["bleu"]):
        assert list(figures) == ["base", "pretrained", "base_pseudo", "student", "nonprivate"]
        assert figures["base_pseudo"] == figures["pretrained"]
    assert len(set(heldout["perplexity"].values())) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_base_writes_its_own_text_behind_public_prompts(
    generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, recipe = tmp_path / "prompts.txt", yaml.safe_load(generator.recipe.read_text())
    prompts.write_text("the bread\nwe eat\n")
    block = {"prompts": str(prompts), "texts": 24, "steps": 2, "batch": 4, "max_tokens": 16}
    generator.recipe.write_text(yaml.safe_dump({**recipe, "pretrain": block}))
    with monkeypatch.context() as patched:
        patched.setattr(generator_method, "_shares", _stop)
        with pytest.raises(_StoppedError):
            rp.run(load_recipe(generator.recipe), generator.folder / "out", console=QUIET)
    (kept,) = (generator.folder / "out" / "public").glob("own-documents-*.json")
    before, documents = kept.stat().st_mtime_ns, json.loads(kept.read_text())
    assert len(documents) == 24
    base = load_backbone(load_recipe(generator.recipe).model)
    assert all(base.text(document).startswith(("the bread", "we eat")) for document in documents)
    prompts.write_text("the cake\n")
    with pytest.raises(rp.ConfigError, match=r"the pretraining text of .* changed since the run began"):
        rp.run(load_recipe(generator.recipe), generator.folder / "out", console=QUIET)
    prompts.write_text("the bread\nwe eat\n")
    rp.run(load_recipe(generator.recipe), generator.folder / "out", console=QUIET)
    assert kept.stat().st_mtime_ns == before, "what was written is found"
    assert _charged(generator) == rp.plan(_without(load_recipe(generator.recipe))).plan.charges
    out = generator.folder / "out"
    afterwards = load_recipe(out / "recipe.yaml").on_its_base(out)
    assert Path(afterwards.model.base) == _folder(generator, "out"), "audits find the model that it became"
    said = "was written by that model; the prompts before it (pretrain.prompts) are public"
    assert any(said in assumption for assumption in generator.certificate("out")["assumptions"])


@pytest.mark.parametrize("name", ["seqpate", "generator"])
def test_text_of_its_own_is_counted_and_timed(name: str) -> None:
    values = {"method": name, "corpus": {"source": "chats.parquet"}}
    read, written = (
        method_of(recipe).planned(recipe).stages[0]
        for recipe in (
            parse_recipe({**values, "pretrain": {"source": "public.csv"}}),
            parse_recipe({**values, "pretrain": {"prompts": "prompts.txt", "texts": 50}}),
        )
    )
    assert {work.what: work.total for work in written.work} == {"own_texts_written": 50, "pretraining_steps": 100}
    assert len(written.efforts) == len(read.efforts) + 1
    assert "50 texts that the base model writes" in written.detail


@pytest.mark.parametrize("name", ["seqpate", "generator"])
def test_the_block_is_part_of_the_release_and_a_stage_that_charges_nothing(name: str, tmp_path: Path) -> None:
    values = {"method": name, "corpus": {"source": "chats.parquet"}}
    plain = parse_recipe(values)
    recipe = parse_recipe({**values, "pretrain": {"source": "public.parquet"}})
    longer = parse_recipe({**values, "pretrain": {"source": "public.parquet", "steps": 101}})
    assert len({plain.release_id, recipe.release_id, longer.release_id}) == 3
    assert "pretrain" not in plain.model_dump(mode="json")
    assert _without(recipe).release_id == plain.release_id
    plan, before = method_of(recipe).planned(recipe), method_of(plain).planned(plain)
    stage = plan.stages[0]
    assert (stage.name, stage.reads, stage.charges) == ("pretraining", "public text", ())
    assert stage.efforts
    assert plan.charges == before.charges
    assert plan.stages[1:] == before.stages
    assert set(plan.assumptions) - set(before.assumptions)


@pytest.mark.parametrize("name", ["seqpate", "generator"])
def test_other_texts_of_the_bases_own_are_another_release(name: str) -> None:
    changes: tuple[dict[str, int], ...] = ({}, {"texts": 50}, {"text_tokens": 8}, {"text_tokens": 9}, {"sentences": 1})
    blocks = ({"prompts": "prompts.txt", **change} for change in changes)
    found = [parse_recipe({"method": name, "pretrain": block}).release_id for block in blocks]
    assert len(set(found)) == len(changes)


@pytest.mark.parametrize("name", ["seqpate", "generator"])
def test_public_text_that_cannot_be_used_is_refused_before_there_is_an_account(name: str, tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("text\n" + "\n".join(["hello"] * 9 + [" "] * 20))
    values = {"method": name, "privacy": {"ledger": f"sqlite:///{tmp_path}/ledger.db", "key": str(tmp_path / "key")}}
    for block, said in (
        ({"source": str(tmp_path / "none.csv")}, r"pretrain\.source is '.*none\.csv', which does not exist"),
        ({"source": str(path), "text": "body"}, r"pretrain\.text is 'body', which is not a column"),
        ({"source": str(path)}, r"pretrain\.source has 9 texts that are not empty: give at least 10"),
    ):
        with pytest.raises(rp.ConfigError, match=said):
            rp.run(parse_recipe({**values, "pretrain": block}), tmp_path / "out", console=QUIET)
    assert not (tmp_path / "ledger.db").exists()
    assert not (tmp_path / "out").exists()


def test_prompts_that_cannot_be_read_are_refused_before_there_is_an_account(tmp_path: Path) -> None:
    values = {"privacy": {"ledger": f"sqlite:///{tmp_path}/ledger.db", "key": str(tmp_path / "key")}}
    block = {"prompts": str(tmp_path / "none.txt")}
    with pytest.raises(rp.ConfigError, match=r"the prompts file .*none\.txt cannot be read"):
        rp.run(parse_recipe({"method": "generator", **values, "pretrain": block}), tmp_path / "out", console=QUIET)
    assert not (tmp_path / "ledger.db").exists()


def test_a_recipe_with_a_source_is_written_as_it_was_before_there_were_prompts() -> None:
    recipe = parse_recipe({"method": "seqpate", "pretrain": {"source": "public.parquet"}})
    written = recipe.model_dump(mode="json")["pretrain"]
    assert set(written) == {"source", "text", "steps", "batch", "max_tokens", "learning_rate"}


def test_credentials_of_a_public_source_are_refused_and_not_shown() -> None:
    with pytest.raises(rp.ConfigError, match=r"pretrain\.source is a URI with credentials") as error:
        parse_recipe({"method": "seqpate", "pretrain": {"source": "s3://me:word@bucket/talk"}})
    assert "word" not in str(error.value)
