"""The generator as its users run it: a recipe in, a model, synthetic text with labels and a certificate out."""

import json

import pyarrow.parquet as pq
import pytest
import yaml
from recipes import TRAINING
from rich.console import Console
from small_jobs import ledger_lines
from transformers import AutoModelForCausalLM, AutoTokenizer

import rayprivacy as rp
from rayprivacy.blocks import steps as training
from rayprivacy.methods.generator import method
from rayprivacy.methods.registry import load_recipe
from rayprivacy.models.backbone import load_backbone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MATCH = {"candidates": 2, "topics": 3, "noise_multiplier": 4.0}


def test_a_run_leaves_everything_it_promises(generator, check_pretrained, stopped_at, monkeypatch):
    """From a base that was trained on its own text, and with its codes' shares in the text that users vote for."""
    prompts, out, quiet = generator.folder / "prompts.txt", generator.folder / "out", Console(quiet=True)
    prompts.write_text("the bread\nwe eat\n")
    pretrain = {"prompts": str(prompts), "texts": 24, "steps": 2, "batch": 4, "max_tokens": 16}
    blocks = {"pretrain": pretrain, "match": MATCH, "training": TRAINING, "generation": {"texts": 6, "max_tokens": 10}}
    generator.recipe.write_text(yaml.safe_dump(yaml.safe_load(generator.recipe.read_text()) | blocks))
    recipe = load_recipe(generator.recipe)
    with stopped_at(method, "_shares"):
        rp.run(recipe, out, console=quiet)
    documents, base = json.loads(next(out.glob("public/own-documents-*.json")).read_text()), load_backbone(recipe.model)
    assert len(documents) == 24
    assert all(base.text(document).startswith(("the bread", "we eat")) for document in documents)
    prompts.write_text("the cake\n")
    with pytest.raises(rp.ConfigError, match=r"the pretraining text of .* changed since the run began"):
        rp.run(recipe, out, console=quiet)
    assert generator.kinds() == []
    prompts.write_text("the bread\nwe eat\n")
    (weights,) = out.glob("public/pretrained-*/model.safetensors")
    before, jobs, real = weights.stat().st_mtime_ns, [], training.run_training
    monkeypatch.setattr(training, "run_training", lambda job, *more: jobs.append(job) or real(job, *more))
    done = generator.run("out", "--resume")
    assert done.returncode == 0, done.stderr
    assert weights.stat().st_mtime_ns == before, "a run that was stopped does not train it again"
    assert [job.model.base for job in jobs] == [str(weights.parent)]
    check_pretrained(generator, "out", "model.embed_tokens.weight")
    certificate, metrics = generator.certificate("out"), generator.metrics("out")
    histogram, *steps, votes = certificate["events"]
    assert (histogram["kind"], histogram["sigma_eff"], histogram["count"]) == ("gaussian", 5.0, 1)
    assert (votes["kind"], votes["sigma_eff"], votes["count"]) == ("gaussian", 4.0, 1)
    names = [stage["name"] for stage in certificate["stages"]]
    assert names == ["shares of control codes", "DP-SGD", "topics and lengths", "all stages together"]
    assert {row["kind"] for row in steps} == {"poisson-sampled-gaussian"}
    assert {row["q"] for row in steps} == {0.4}
    assert sum(row["count"] for row in steps) == TRAINING["steps"] == 4
    assert certificate["composition"] == "rdp"
    assert certificate["spent_diagnostic"]["epsilon"] == pytest.approx(certificate["epsilon"], rel=1e-3)
    assert any("Poisson" in sentence for sentence in certificate["assumptions"])
    table = pq.read_table(out / "synthetic.parquet")
    assert table.column_names == ["text", "topic"]
    assert set(table["topic"].to_pylist()) <= {"food", "pets", "other"}
    assert metrics["heldout"]["releasable"] is False
    assert set(metrics["heldout"]["perplexity"]) == {"base", "pretrained", "generator"}
    assert metrics["synthetic"]["texts"] == len(table) == 6
    assert "figures" not in metrics, "as nobody asked for them"
    model, tokenizer = (kind.from_pretrained(out / "model") for kind in (AutoModelForCausalLM, AutoTokenizer))
    answer = model.generate(**tokenizer("topic: food\n", return_tensors="pt"), max_new_tokens=3)
    assert answer.shape[1] > 3
    assert "DP-SGD" in (out / "model" / "README.md").read_text()
    assert "poisson-sampled-gaussian" in (out / "report.html").read_text()
    assert "user-" not in done.stdout + done.stderr
    for name in ("run.log", "certificate.json", "certificate.md", "report.html", "recipe.yaml"):
        assert "user-" not in (out / name).read_text(), name
    for path in [out / "private", *(out / "private").rglob("*.safetensors")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert [line[1:] for line in ledger_lines(generator.folder)] == [(n, "committed") for n in (0, 1, 2, 0)]
    assert generator.call("audit", str(out), "--users", "8").returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", [2, 3])
def test_another_road_to_the_same_release(generator, stage):
    """Two workers with ZeRO draw the same coins and the same noise, and may add up in another order."""
    pytest.importorskip("deepspeed")
    assert generator.run("out").returncode == 0
    other = generator.run("other", "-o", "resources.workers=2", "-o", f"resources.zero={stage}")
    ours, theirs = (generator.folder / out / "model" / "model.safetensors" for out in ("out", "other"))
    if other.returncode == 0:
        assert theirs.read_bytes() == ours.read_bytes()
    else:
        assert "was made before, and chunk 1 ended in another model" in other.stderr
        assert not theirs.exists()
    assert len(ledger_lines(generator.folder)) == 4
