"""The generator as its users run it: a recipe in, a model, synthetic text with labels and a certificate out."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from rayprivacy.ledger.store import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _charges(job: Any) -> list[Any]:
    ledger = Ledger.open(f"sqlite:///{job.folder}/ledger.db")
    ledger.verify()
    found = [(line.rung, line.state) for line in ledger.lines("talk")]
    ledger.close()
    return found


def test_a_run_leaves_everything_it_promises(generator: Any) -> None:
    """With the shares of its codes in the text that users vote for; tests/cluster compares what repetitions leave."""
    done = generator.run("out", "-o", "match={candidates: 3, topics: 3, noise_multiplier: 4.0}")
    assert done.returncode == 0, done.stderr
    out, certificate = generator.folder / "out", generator.certificate("out")
    _check_certificate(certificate)
    _check_outputs(out)
    _check_nothing_private(out, done.stdout + done.stderr)
    assert _charges(generator) == [(rung, "committed") for rung in (0, 1, 2, 3, 0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", [2, 3])
def test_another_road_to_the_same_release(generator: Any, stage: int) -> None:
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
    assert len(_charges(generator)) == 4


def _check_certificate(certificate: dict[str, Any]) -> None:
    histogram, *steps, votes = certificate["events"]
    assert (histogram["kind"], histogram["sigma_eff"], histogram["count"]) == ("gaussian", 5.0, 1)
    assert (votes["kind"], votes["sigma_eff"], votes["count"]) == ("gaussian", 4.0, 1)
    names = [stage["name"] for stage in certificate["stages"]]
    assert names == ["shares of control codes", "DP-SGD", "topics and lengths", "all stages together"]
    assert {row["kind"] for row in steps} == {"poisson-sampled-gaussian"}
    assert {row["q"] for row in steps} == {0.4}
    assert sum(row["count"] for row in steps) == 6
    assert certificate["composition"] == "rdp"
    assert certificate["spent_diagnostic"]["epsilon"] == pytest.approx(certificate["epsilon"], rel=1e-3)
    assert any("Poisson" in sentence for sentence in certificate["assumptions"])


def _check_outputs(out: Path) -> None:
    table = pq.read_table(out / "synthetic.parquet")
    assert table.column_names == ["text", "topic"]
    assert set(table["topic"].to_pylist()) <= {"food", "pets", "other"}
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["heldout"]["releasable"] is False
    assert set(metrics["heldout"]["perplexity"]) == {"base", "generator"}
    assert metrics["synthetic"]["texts"] == len(table)
    assert len(table) == 12
    model, tokenizer = (kind.from_pretrained(out / "model") for kind in (AutoModelForCausalLM, AutoTokenizer))
    answer = model.generate(**tokenizer("topic: food\n", return_tensors="pt"), max_new_tokens=3)
    assert answer.shape[1] > 3
    assert "DP-SGD" in (out / "model" / "README.md").read_text()
    page = (out / "report.html").read_text()
    assert "poisson-sampled-gaussian" in page
    assert "generator" in page


def _check_nothing_private(out: Path, printed: str) -> None:
    assert "user-" not in printed
    for name in ("run.log", "certificate.json", "certificate.md", "report.html", "recipe.yaml"):
        assert "user-" not in (out / name).read_text(), name
    for path in (out / "private").rglob("*.safetensors"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (out / "private").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"corpus": {"text": "nothing"}}, "nothing"),
        pytest.param({"corpus": {"labels": ["mood"]}}, "codes", marks=pytest.mark.exhaustive),
        pytest.param({"model": {"base": "/nowhere/at/all"}}, "model.base", marks=pytest.mark.exhaustive),
    ],
)
def test_bad_input_is_one_sentence_and_costs_nothing(
    generator: Any, change: dict[str, dict[str, Any]], says: str
) -> None:
    recipe = yaml.safe_load(generator.recipe.read_text())
    for block, keys in change.items():
        recipe[block] |= keys
    generator.recipe.write_text(yaml.safe_dump(recipe))
    done = generator.run("out")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (generator.folder / "ledger.db").exists() or _charges(generator) == []
