"""A trainer as its users call it: a model, a dataset and an account in, a model with a certificate out."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from trainer_bench import SPOKEN, TRAINING, TrainerBench
from transformers import AutoModelForCausalLM, AutoTokenizer
from zygote import fork

import rayprivacy as rp
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.ledger.certificate import Certificate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
OWN_LOSS, TRIED = "The loss is a function", "was tried on public tokens"


@pytest.fixture
def bench(tmp_path, tiny_base, local_ray):
    return TrainerBench(tmp_path, tiny_base)


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory, tiny_base, local_ray):
    return TrainerBench(tmp_path_factory.mktemp("bench"), tiny_base)


@pytest.fixture(scope="module")
def fitted(shared_bench):
    """What two workers trained, from a model that was given as an object; with all reports that Ray Train had."""
    return shared_bench.trainer(workers=2, name="mine", given=True, callbacks=[shared_bench.callback()]).fit()


def test_the_result_has_the_certificate_of_the_ledger(shared_bench, fitted):
    assert set(fitted.metrics) == {"certificate", "epsilon", "release_id"}
    certificate = Certificate.model_validate(fitted.metrics["certificate"])
    assert fitted.metrics["release_id"] == certificate.release_id
    assert fitted.metrics["epsilon"] == certificate.epsilon == 8.0
    assert json.loads((Path(fitted.path) / "certificate.json").read_text()) == fitted.metrics["certificate"]
    assert shared_bench.charges() == [(certificate.release_id, rung, "committed") for rung in (1, 2)]
    with rp.Ledger.open(f"sqlite:///{shared_bench.folder}/ledger.db") as ledger:
        assert certificate.ledger_head in {entry.hash for entry in ledger.entries("talk")}
        assert certificate.spent_diagnostic.epsilon <= ledger.status("talk").account.budget.epsilon
    assert {row.kind for row in certificate.events} == {"poisson-sampled-gaussian"}
    assert sum(row.count for row in certificate.events) == 4
    said = [sum(each in sentence for sentence in certificate.assumptions) for each in ("Poisson", OWN_LOSS, TRIED)]
    assert said[0] > 0
    assert said[1:] == [0, 1]


def test_ray_train_keeps_its_name_storage_and_callbacks(shared_bench, fitted):
    """Its checkpoint is an ordinary model."""
    root = shared_bench.storage / "mine"
    assert (Path(fitted.path), fitted.error, Path(fitted.checkpoint.path)) == (root, None, root / "model")
    reports = [f"{[{'steps': steps}] * 2}" for steps in (2, 4)]  # of both workers, and nothing but what is public
    assert shared_bench.reports.read_text().splitlines() == reports
    model, tokenizer = (kind.from_pretrained(root / "model") for kind in (AutoModelForCausalLM, AutoTokenizer))
    answer = model.generate(**tokenizer("topic: food\n", return_tensors="pt"), max_new_tokens=3)
    assert answer.shape[1] > 3
    base = AutoModelForCausalLM.from_pretrained(shared_bench.base).state_dict()
    assert any(not torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())


def test_nothing_private_is_outside_of_the_private_folder(shared_bench, fitted):
    root = Path(fitted.path)
    assert root.stat().st_mode & 0o077 == 0
    files = [path for path in shared_bench.folder.rglob("*") if path.is_file()]
    outside = [path.read_bytes() for path in files if root / "private" not in path.parents]
    assert len(outside) > 10
    for content in (*outside, str(fitted.metrics).encode()):
        assert not [text for text in (SPOKEN.encode(), b"user-") if text in content]


def test_a_second_fit_pays_nothing_and_another_one_is_refused(shared_bench, fitted):
    weights = Path(fitted.checkpoint.path) / "model.safetensors"
    charged, before = shared_bench.charges(), weights.read_bytes()
    again = shared_bench.trainer(workers=2, name="mine", given=True).fit()
    assert (again.metrics, weights.read_bytes()) == (fitted.metrics, before)
    other = shared_bench.trainer(name="other", seed=1)
    with pytest.raises(rp.BudgetRefusedError):
        other.fit()
    assert shared_bench.charges() == charged
    assert not other.path.exists()


def _scaled(factor):
    def loss(model, batch):
        return factor * row_losses(model, batch)

    return loss


@pytest.mark.exhaustive
def test_a_loss_of_the_users_own_is_what_is_trained(bench):
    """Two losses of one name are one release, with the same coins and noise: only the loss can tell their models.

    All weights are trained, the ledger is given as an open one, and the result can be cleaned.
    """
    full = {"adapter": {"kind": "full"}}
    with rp.Ledger.open(f"sqlite:///{bench.folder}/ledger.db") as ledger:
        result = bench.trainer(name="down", ledger=ledger, loss=_scaled(1.0), **full).fit()
    assert any(OWN_LOSS in sentence for sentence in result.metrics["certificate"]["assumptions"])
    assert len(bench.charges()) == 2
    with pytest.raises(rp.ReleaseError, match="was made before, and chunk 1 ended in another model"):
        bench.trainer(name="up", loss=_scaled(-1.0), **full).fit()
    assert len(bench.charges()) == 2
    assert rp.clean(result.path).left == ()
    assert list((Path(result.path) / "private").iterdir()) == []
    assert Path(result.checkpoint.path).is_dir()


def _refused(kind):
    def loss(model, batch):
        if kind == "quoting":
            raise ValueError(f"spoken in private {batch.ids}")
        own = row_losses(model, batch)
        return own / own.detach().sum()

    return loss


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("mixing", "the gradient of one user depends on the others"),
        pytest.param("quoting", "stopped with ValueError", marks=pytest.mark.exhaustive),
    ],
)
def test_a_loss_that_cannot_be_clipped_is_refused_unpaid(bench, kind, says):
    trainer = bench.trainer(loss=_refused(kind))
    with pytest.raises(rp.RayPrivacyError, match=says) as caught:
        trainer.fit()
    assert SPOKEN not in str(caught.value)
    assert bench.charges() == []
    assert not (trainer.path / "model").exists()


@pytest.mark.exhaustive
def test_killed_in_the_middle_and_fitted_again_it_pays_once(bench):
    script = f"""
import ray
from pathlib import Path
from trainer_bench import TRAINING, TrainerBench
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
TrainerBench(Path({str(bench.folder)!r}), Path({str(bench.base)!r})).trainer(training=TRAINING | {{"steps": 20}}).fit()
"""
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
    assert 3 <= len(bench.charges()) < 10
    result = bench.trainer(training=TRAINING | {"steps": 20}).fit()
    assert bench.charges() == [(result.metrics["release_id"], rung, "committed") for rung in range(1, 11)]
    assert SPOKEN not in (bench.folder / "said").read_text()
