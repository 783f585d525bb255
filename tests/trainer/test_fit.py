"""A trainer as its users call it: a model, a dataset and an account in, a model with a certificate out."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_bench import SPOKEN, TRAINING, TrainerBench
from transformers import AutoModelForCausalLM, AutoTokenizer
from zygote import fork

import rayprivacy as rp
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.ledger.certificate import Certificate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FULL = {"adapter": {"kind": "full"}}


def test_the_result_has_the_certificate_of_the_ledger(shared_bench: TrainerBench, fitted: Any) -> None:
    certificate = Certificate.model_validate(fitted.metrics["certificate"])
    assert fitted.metrics["release_id"] == certificate.release_id
    assert fitted.metrics["epsilon"] == certificate.epsilon == 8.0
    assert json.loads((Path(fitted.path) / "certificate.json").read_text()) == fitted.metrics["certificate"]
    assert shared_bench.charges() == [(certificate.release_id, rung, "committed") for rung in (1, 2)]
    with rp.Ledger.open(f"sqlite:///{shared_bench.folder}/ledger.db") as ledger:
        assert certificate.ledger_head in {entry.hash for entry in ledger.entries("talk")}
        status = ledger.status("talk")
    assert certificate.spent_diagnostic.epsilon <= status.account.budget.epsilon
    assert sum(row.count for row in certificate.events) == 4
    assert {row.kind for row in certificate.events} == {"poisson-sampled-gaussian"}
    assert any("Poisson" in sentence for sentence in certificate.assumptions)
    assert not any("The loss is a function" in sentence for sentence in certificate.assumptions)
    assert sum("was tried on public tokens" in sentence for sentence in certificate.assumptions) == 1


def test_ray_train_keeps_its_name_storage_and_callbacks(shared_bench: TrainerBench, fitted: Any) -> None:
    root = shared_bench.storage / "mine"
    assert Path(fitted.path) == root
    assert fitted.error is None
    assert Path(fitted.checkpoint.path) == root / "model"
    reports = [f"{[{'steps': steps}] * 2}" for steps in (2, 4)]  # of both workers, and nothing but what is public
    assert shared_bench.reports.read_text().splitlines() == reports


def test_the_checkpoint_is_an_ordinary_model(shared_bench: TrainerBench, fitted: Any) -> None:
    model, tokenizer = (kind.from_pretrained(fitted.checkpoint.path) for kind in (AutoModelForCausalLM, AutoTokenizer))
    answer = model.generate(**tokenizer("topic: food\n", return_tensors="pt"), max_new_tokens=3)
    assert answer.shape[1] > 3
    base = AutoModelForCausalLM.from_pretrained(shared_bench.base).state_dict()
    assert any(not torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())


def test_nothing_private_is_outside_of_the_private_folder(shared_bench: TrainerBench, fitted: Any) -> None:
    assert SPOKEN not in str(fitted.metrics)
    assert "user-" not in str(fitted.metrics)
    root = Path(fitted.path)
    assert root.stat().st_mode & 0o077 == 0
    outside = [
        path for path in shared_bench.folder.rglob("*") if path.is_file() and root / "private" not in path.parents
    ]
    assert len(outside) > 10
    for path in outside:
        content = path.read_bytes()
        assert SPOKEN.encode() not in content, path
        assert b"user-" not in content, path
    assert set(fitted.metrics) == {"certificate", "epsilon", "release_id"}


def test_a_second_fit_pays_nothing(shared_bench: TrainerBench, fitted: Any) -> None:
    weights = Path(fitted.checkpoint.path) / "model.safetensors"
    charged, before = shared_bench.charges(), weights.read_bytes()
    again = shared_bench.trainer(workers=2, name="mine", given=True).fit()
    assert again.metrics == fitted.metrics
    assert weights.read_bytes() == before
    assert shared_bench.charges() == charged


def test_a_budget_that_is_spent_is_refused_before_training(shared_bench: TrainerBench, fitted: Any) -> None:
    charged = shared_bench.charges()
    other = shared_bench.trainer(name="other", seed=1)
    with pytest.raises(rp.BudgetRefusedError):
        other.fit()
    assert shared_bench.charges() == charged
    assert not other.path.exists()


def _scaled(factor: float) -> Any:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        return factor * row_losses(model, batch)

    return loss


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, local_ray: Path) -> tuple[TrainerBench, Any]:
    """All weights are trained, on a loss of the user's own, and the ledger is given as an open one."""
    bench = TrainerBench(tmp_path_factory.mktemp("whole"), tiny_base)
    with rp.Ledger.open(f"sqlite:///{bench.folder}/ledger.db") as ledger:
        return bench, bench.trainer(name="down", ledger=ledger, loss=_scaled(1.0), **FULL).fit()


@pytest.mark.exhaustive
def test_a_loss_of_the_users_own_is_what_is_trained(whole: tuple[TrainerBench, Any]) -> None:
    """Two losses of one name are one release, with the same coins and noise: only the loss can tell their models."""
    bench, result = whole
    assert any("The loss is a function" in sentence for sentence in result.metrics["certificate"]["assumptions"])
    assert len(bench.charges()) == 2
    with pytest.raises(rp.ReleaseError, match="was made before, and chunk 1 ended in another model"):
        bench.trainer(name="up", loss=_scaled(-1.0), **FULL).fit()
    assert len(bench.charges()) == 2


@pytest.mark.exhaustive
def test_it_can_be_cleaned(whole: tuple[TrainerBench, Any]) -> None:
    _, result = whole
    assert rp.clean(result.path).left == ()
    assert list((Path(result.path) / "private").iterdir()) == []
    assert Path(result.checkpoint.path).is_dir()


def _mixing() -> Any:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        own = row_losses(model, batch)
        return own / own.detach().sum()

    return loss


def _quoting() -> Any:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        raise ValueError(f"spoken in private {batch.ids}")

    return loss


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (_mixing(), "the gradient of one user depends on the others"),
        pytest.param(_quoting(), "stopped with ValueError", marks=pytest.mark.exhaustive),
    ],
    ids=["mixing", "quoting"],
)
def test_a_loss_that_cannot_be_clipped_is_refused_before_anything_is_charged(
    bench: TrainerBench, loss: Any, says: str
) -> None:
    trainer = bench.trainer(loss=loss)
    with pytest.raises(rp.RayPrivacyError, match=says) as caught:
        trainer.fit()
    assert SPOKEN not in str(caught.value)
    assert bench.charges() == []
    assert not (trainer.path / "model").exists()


SCRIPT = """
import ray
from pathlib import Path
from trainer_bench import TRAINING, TrainerBench
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
bench = TrainerBench(Path({folder!r}), Path({base!r}))
bench.trainer(training=TRAINING | {{"steps": 20}}).fit()
"""


@pytest.mark.exhaustive
def test_killed_in_the_middle_and_fitted_again_it_pays_once(bench: TrainerBench) -> None:
    script = SCRIPT.format(folder=str(bench.folder), base=str(bench.base))
    with (bench.folder / "said").open("w") as said:
        process = fork(["-c"], script, os.environ, bench.folder, [said.fileno()] * 2)
        try:
            while len(bench.charges()) < 3:
                assert process.poll() is None, (bench.folder / "said").read_text()
                time.sleep(0.2)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    before = bench.charges()
    assert 3 <= len(before) < 10
    result = bench.trainer(training=TRAINING | {"steps": 20}).fit()
    assert bench.charges() == [(result.metrics["release_id"], rung, "committed") for rung in range(1, 11)]
    assert SPOKEN not in (bench.folder / "said").read_text()
