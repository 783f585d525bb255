"""What every method has without code of its own, shown on the toy, and what others may need, each on a small method."""

import json
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toy_bench import QUIET, SPOKEN, USERS, Bench
from toy_method import CHUNKS, LENGTHS, TEXT
from toy_sanitised import STAGE
from toy_twice import DECAYING, FIRST, SECOND

import rayprivacy as rp
from rayprivacy.accounting import renyi
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.methods.registry import method_named
from rayprivacy.release import files
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.drive import drive
from rayprivacy.runs.plan import epsilon_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ORDER = 8.0
STAGES = ["corpus by user", "base model", LENGTHS, CHUNKS, TEXT, "evaluation", "report"]


class _KilledError(BaseException):
    """Ends a run as nothing that the package catches does."""


@contextmanager
def killed(stage, *, before):
    """Within this, a run ends when it enters a stage, or when the work of the stage is done."""
    real = Run.stage

    @contextmanager
    def dying(self, name):
        if before and name == stage:
            raise _KilledError
        with real(self, name):
            yield
            if name == stage:
                raise _KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "stage", dying)
        with pytest.raises(_KilledError):
            yield


def kept(root):
    """What a run leaves that does not depend on time; the names of folders differ."""
    names = ("certificate.json", "certificate.md", "synthetic.parquet", "model/model.safetensors", "README.md")
    return {name: (root / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny_base, local_ray):
    """With one finished run, `out`, that tests look at."""
    found = Bench(tmp_path_factory.mktemp("toy"), tiny_base)
    found.run()
    return found


def test_the_plan_shows_every_stage_with_its_cost(bench):
    outline = rp.plan(bench.load())
    assert [stage for stage, _, _ in outline.rows()][:3] == [f"{LENGTHS}: 4 bins", CHUNKS, f"{TEXT}: 8 texts"]
    assert len(outline.plan.charges) == 4
    assert outline.epsilons[LENGTHS] < outline.epsilons[CHUNKS] < outline.epsilon
    assert f"{outline.epsilon:.4g}" in " ".join(str(outline).split())


def test_a_run_leaves_a_release_and_a_certificate_of_each_stage(shared):
    result = shared.run()
    assert result.texts().count() == 8
    assert result.model().config.model_type == "llama"
    assert result.tokenizer()("hello")["input_ids"]
    certificate = result.certificate
    assert certificate.release_id == result.recipe.release_id
    assert LENGTHS in (result.path / "report.html").read_text()
    card = (result.path / "README.md").read_text()
    assert "the toy of the tests: how long private texts are was counted with noise" in card
    assert result.metrics["synthetic"]["bins"] == 4
    assert SPOKEN not in "".join(path.read_text(errors="replace") for path in result.path.glob("*.*"))
    *alone, together = certificate.stages
    assert [line["name"] for line in certificate.stages] == [LENGTHS, CHUNKS, "all stages together"]
    assert max(line["epsilon"] for line in alone) < together["epsilon"] < sum(line["epsilon"] for line in alone)
    with rp.Ledger.open(f"sqlite:///{shared.folder}/ledger.db") as ledger:
        composed = epsilon_of(ledger.terms("talk").rule, rp.plan(result.recipe).plan.charges)
    assert together["epsilon"] == composed == certificate.spent_diagnostic.epsilon
    text = (result.path / "certificate.md").read_text()
    assert all(line["name"] in text for line in certificate.stages)


@pytest.mark.parametrize(
    ("before", "stages"),
    [
        pytest.param(True, STAGES, id="entering", marks=pytest.mark.exhaustive),
        pytest.param(False, STAGES, id="leaving", marks=pytest.mark.exhaustive),
        pytest.param(False, [LENGTHS, CHUNKS, "report"], id="leaving what is charged"),
    ],
)
def test_a_run_killed_at_each_stage_resumes_with_the_same_charges(bench, before, stages):
    """One run dies at every stage, and each attempt is finished by one that dies later."""
    for stage in stages:
        with killed(stage, before=before):
            bench.run("killed")
    finished = bench.run("killed")
    assert [state for _, _, state in bench.charges()] == ["committed"] * 4
    again = kept(finished.path)
    bench.run("killed")
    assert kept(finished.path) == again
    other = bench.run("other")  # from what the ledger holds: nothing is charged or drawn again
    assert kept(other.path) == again
    assert len(bench.charges()) == 4


def test_audits_and_shadows_read_it_as_it_says(shared):
    found = rp.audit(shared.folder / "out", users=10, shadows=4, console=QUIET)
    assert set(found["membership"]) > {"loss", "calibrated"}
    assert found["sample"]["shadows"] == 4
    assert len(shared.charges()) == 4, "shadow models have a ledger of their own"


def test_an_audit_needs_users_who_were_held_out(bench):
    result = bench.run(overrides={"corpus.holdout": 0.0})
    with pytest.raises(rp.ConfigError, match=r"corpus\.holdout = 0 kept nobody aside.*a larger corpus\.holdout"):
        rp.audit(result.path, users=10, console=QUIET)


def test_a_recipe_may_plant_canaries(bench):
    result = bench.run(overrides={"audit.users": 10, "audit.canaries.repetitions": [1, 2]})
    assert json.loads((result.path / "audit.json").read_text())["canaries"]
    assert any("audit run" in warning for warning in result.certificate.warnings)
    assert rp.clean(result.path).left == ()
    assert list((result.path / "private").iterdir()) == []


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_search_pays_for_every_trial(bench, resumed):
    out = bench.folder / "search"
    begun: Any = rp.tune(bench.space(trials=1), out=out, console=QUIET) if resumed else None
    assert len(bench.charges("search")) == 4 * resumed
    found: Any = rp.tune(bench.space(trials=2), out=out, console=QUIET)
    assert not resumed or found.rows[:1] == begun.rows
    assert [row.state for row in found.rows] == ["finished"] * 2
    assert len(bench.charges("search")) == 8
    assert found.spent == pytest.approx(sum(row.share for row in found.rows), rel=1e-6)
    with pytest.raises(rp.ConfigError, match="--resume"):
        rp.tune(bench.space(trials=2), out=out, resume=False, console=QUIET)
    with pytest.raises(rp.ConfigError, match="another space"):
        rp.tune(bench.space(search={"toy.sharpness": {"uniform": [0.1, 1.0]}}), out=out, console=QUIET)
    rp.run(rp.load_recipe(out / "best.yaml"), bench.folder / "best", console=QUIET)
    assert len(bench.charges("search")) == 8, "the best trial is a release that was paid for"


@pytest.mark.exhaustive
def test_a_budget_for_seven_of_twelve_trials_stops_after_seven(bench):
    plan = rp.plan(bench.load()).plan
    each = sum(renyi.rdp(event, (ORDER,))[0] for event in plan.charges)
    cap = renyi.epsilon_at(7.5 * each, ORDER, 1e-6)
    budget, fixed = {"account": "search", "epsilon": cap, "delta": 1e-6}, {"privacy": {"composition": "rdp"}}
    space = bench.space(trials=12, concurrent=4, budget=budget, fixed=fixed)
    with rp.Ledger.open(f"sqlite:///{bench.folder}/ledger.db") as ledger:
        terms = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(cap, 1e-6), "rdp")
        ledger.create_account("search", *terms, order=ORDER)
    found: Any = rp.tune(space, out=bench.folder / "search", console=QUIET)
    assert [row.state for row in found.rows].count("finished") == 7
    assert sum(row.charges for row in found.rows) == len(bench.charges("search")) == 7 * 4
    assert found.exhausted == "the account has too little left for another trial"
    assert 0.9 < found.spent <= 1


def test_the_winner_of_a_selection_is_published_and_reported(bench):
    kind = {"charging": "select", "searcher": "random", "select": {"mean": 3.0, "distribution": "geometric"}}
    space = bench.space(**kind, trials=None, fixed={"privacy": {"composition": "rdp"}})
    winner: Any = rp.tune(space, out=bench.folder / "search", console=QUIET)
    assert winner.texts().count() == 8
    assert "the winner of a secret number of trials" in (winner.path / "report.html").read_text()
    page = Path(rp.report(winner.path, public=True))
    assert page.name == "report-public.html"
    assert winner.certificate.tuning_charge is not None


SANITISED = {"method": "toy_sanitised"}


def test_a_sanitiser_needs_no_model_and_has_a_metric_local_account(bench):
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


def test_an_audit_of_a_sanitiser_is_refused_before_an_account_is_opened(bench):
    with pytest.raises(rp.ConfigError, match="'audit' is set and method 'toy_sanitised' releases no model"):
        bench.run(overrides=SANITISED | {"audit.users": 10})
    assert not (bench.folder / "ledger.db").exists()


@pytest.mark.parametrize("crash", ["before the commit", "after the commit"])
def test_a_file_is_released_once_whatever_dies(bench, monkeypatch, crash):
    real = files.digest_file
    calls: Counter[str] = Counter()

    def dying(path):
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


def test_a_file_that_others_left_no_budget_for_leaves_the_earlier_release_whole(bench, monkeypatch):
    swaps = SANITISED | {"privacy.epsilon": 4.0}
    result = bench.run(overrides=swaps)
    kept = {name: (result.path / name).read_bytes() for name in ("sanitized.parquet", "certificate.json")}
    bench.talk("talk.parquet", USERS, "guest")
    real = RunContext.shard

    def overtaken(context):
        monkeypatch.undo()
        bench.run("faster", {**swaps, "seed": 1})  # after the account was asked, before the file is charged
        return real(context)

    monkeypatch.setattr(RunContext, "shard", overtaken)
    with pytest.raises(rp.BudgetRefusedError):
        bench.run(overrides=swaps)
    assert len(bench.charges()) == 2
    assert {name: (result.path / name).read_bytes() for name in kept} == kept


def test_a_selective_method_has_an_account_of_its_policy(bench):
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
@pytest.mark.parametrize("stopped", [False, True])
def test_trainings_of_a_release_share_neither_charge_nor_coins_nor_noise(bench, stopped):
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
