"""What methods may need beyond the toy fits without a change to `runs`: each is shown by a small one."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from toy_bench import QUIET, USERS, Bench
from toy_sanitised import STAGE
from toy_twice import DECAYING, FIRST, SECOND

import rayprivacy as rp
from rayprivacy.core.units import AccountKind
from rayprivacy.methods.registry import method_named
from rayprivacy.release import files
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.drive import drive

SANITISED = {"method": "toy_sanitised"}


def test_a_sanitiser_needs_no_model_and_has_a_metric_local_account(bench: Bench) -> None:
    result = bench.run(overrides=SANITISED)
    assert not (result.path / "model").exists()
    assert result.certificate.kind is AccountKind.METRIC_LOCAL
    assert result.certificate.composition == "metric"
    assert [line["name"] for line in result.certificate.stages] == [STAGE, "all stages together"]
    assert result.certificate.stages[0]["epsilon"] == 2.0  # 4 words at 0.5
    assert result.texts().count() > 0
    card = (result.path / "README.md").read_text()
    assert "Private text with other words." in card
    assert "model/" not in card.replace("base model", "")
    with pytest.raises(rp.ConfigError, match="releases no model"):
        rp.audit(result.path, console=QUIET)
    with pytest.raises(rp.ConfigError, match="holds no model"):
        result.model()
    rp.clean(result.path)
    assert list((result.path / "private").iterdir()) == []


def test_an_audit_of_a_sanitiser_is_refused_before_an_account_is_opened(bench: Bench) -> None:
    with pytest.raises(rp.ConfigError, match="'audit' is set and method 'toy_sanitised' releases no model"):
        bench.run(overrides=SANITISED | {"audit.users": 10})
    assert not (bench.folder / "ledger.db").exists()


@pytest.mark.parametrize("crash", ["before the commit", "after the commit"])
def test_a_file_is_released_once_whatever_dies(bench: Bench, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    real = files.digest_file
    calls: Counter[str] = Counter()

    def dying(path: Path) -> str:
        calls[path.name] += 1
        if calls.total() == (1 if crash == "before the commit" else 2):
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(files, "digest_file", dying)
    with pytest.raises(KeyboardInterrupt):
        bench.run(overrides=SANITISED)
    monkeypatch.undo()
    assert not (bench.folder / "out" / "sanitized.parquet").exists()
    first = (bench.folder / "out" / "private" / "unreleased-sanitized.parquet").read_bytes()
    result = bench.run(overrides=SANITISED)
    released = (result.path / "sanitized.parquet").read_bytes()
    assert (released == first) == (crash == "after the commit")
    assert len(bench.charges()) == 1
    (result.path / "sanitized.parquet").unlink()
    with pytest.raises(rp.ReleaseError, match="its file is not here"):
        bench.run(overrides=SANITISED)


def test_a_file_that_others_left_no_budget_for_leaves_the_earlier_release_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    swaps = SANITISED | {"privacy.epsilon": 4.0}
    result = bench.run(overrides=swaps)
    kept = {name: (result.path / name).read_bytes() for name in ("sanitized.parquet", "certificate.json")}
    bench.talk("talk.parquet", USERS, "guest")
    real = RunContext.shard

    def overtaken(context: Any) -> Any:
        monkeypatch.undo()
        bench.run("faster", {**swaps, "seed": 1})  # after the account was asked, before the file is charged
        return real(context)

    monkeypatch.setattr(RunContext, "shard", overtaken)
    with pytest.raises(rp.BudgetRefusedError):
        bench.run(overrides=swaps)
    assert len(bench.charges()) == 2
    assert {name: (result.path / name).read_bytes() for name in kept} == kept


def test_a_selective_method_has_an_account_of_its_policy(bench: Bench) -> None:
    result = bench.run(overrides={"method": "toy_selective"})
    assert result.certificate.kind is AccountKind.SELECTIVE
    assert result.certificate.parameters["policy"] == "digits"
    assert "selectively differentially private" in (result.path / "report.html").read_text()
    assert "selective, unit: user" in rp.plan(bench.load({"method": "toy_selective"})).note
    with pytest.raises(rp.LedgerError, match="policy is 'names' and account 'talk' was created with 'digits'"):
        bench.run("names", {"method": "toy_selective", "policy": "names"})
    with pytest.raises(rp.LedgerError, match=r"privacy\.kind is 'central' and account 'talk'"):
        bench.run("central")


TWICE = {"method": "toy_twice", "privacy.composition": "rdp", "privacy.epsilon": 20.0}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stopped", [False, True])
def test_trainings_of_a_release_share_neither_charge_nor_coins_nor_noise(bench: Bench, stopped: bool) -> None:
    """A third has noise and documents that change by step, and a search may stop it alone."""
    if stopped:
        twice = method_named("toy_twice"), bench.load(TWICE), bench.folder / "out"
        assert drive(*twice, until=1, console=QUIET, measured=False).certificate == {}
        assert len(bench.charges()) == 5
    result = bench.run(overrides=TWICE)
    lines, names = bench.charges(), [FIRST, SECOND, DECAYING]
    assert [state for _, _, state in lines] == ["committed"] * 6, "three trainings in two chunks each"
    assert len({(result.path / "public" / f"weights of {name}").read_bytes() for name in names}) == 3
    with rp.Ledger.open(f"sqlite:///{bench.folder}/ledger.db") as ledger:
        charges = ledger.charges_of("talk", result.certificate.release_id)
        assert [charge.event for charge in charges] == rp.plan(result.recipe).plan.charges
        assert len({charge.input_digest for charge in charges}) == 3
    assert [line["name"] for line in result.certificate.stages] == [*names, "all stages together"]
    assert bench.run(overrides=TWICE).certificate == result.certificate
    assert bench.charges() == lines
