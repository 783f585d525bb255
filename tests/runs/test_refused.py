"""A refused command leaves nothing that the corrected one could stumble over, and a second process is told so."""

import threading
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_jobs import run_command
from toy_method import LENGTHS

import rayprivacy as rp
from rayprivacy.methods.registry import method_named
from rayprivacy.runs import account, context
from rayprivacy.runs.directory import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PLD = {"privacy.composition": "pld"}


def _empty(bench):
    pq.write_table(
        pa.table({"who": pa.array([], pa.string()), "said": pa.array([], pa.string())}), bench.folder / "no.parquet"
    )


# How a first attempt is wrong: overrides, and what is said of them.
WRONG = {
    "a label that is no column": ({"corpus.labels": ["stars"]}, r"corpus\.labels is 'stars', which is not a column"),
    "a user that is no column": ({"corpus.user": "author"}, r"corpus\.user is 'author', which is not a column"),
    "no such file": ({"corpus.source": "there/is/none.csv"}, "which does not exist"),
    "no rows": ({"corpus.source": "no.parquet"}, "."),
    "no such base": ({"model.base": "there/is/none"}, "model"),
    "too small a budget": ({"privacy.epsilon": 0.01}, "epsilon"),
    "no ledger key": ({"privacy.ledger_key": "no.key"}, "does not exist"),
}


def _tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_refused_runs_leave_nothing_and_the_corrected_one_goes_through(bench, monkeypatch):
    """One attempt after the other in one folder: none finds what another has left."""
    monkeypatch.chdir(bench.folder)
    _empty(bench)
    for name, (changes, match) in WRONG.items():
        (bench.folder / "secret.key").unlink(missing_ok=True)
        before = _tree(bench.folder)
        with pytest.raises(rp.RayPrivacyError, match=match) as refused:
            bench.run("runs/out", PLD | changes)
        assert refused.value.exit_code in (2, 3), name
        assert set(_tree(bench.folder)) - set(before) <= {"secret.key"}, f"{name}: another run may take up the key"
        assert set(before) <= set(_tree(bench.folder)), name
    assert bench.run("runs/out", PLD | {"toy.chunks": 2}).certificate.composition == "pld"
    assert len(bench.charges()) == 3


def test_a_directory_that_is_taken_locks_no_account(bench):
    bench.run("out", PLD)
    taken = PLD | {"seed": 1, "privacy.account": "other"}
    with pytest.raises(rp.ConfigError, match="holds a run of another recipe"):
        bench.run("out", taken)
    assert bench.charges("other") == []
    bench.run("another", taken)
    assert len(bench.charges("other")) == 4


def test_an_account_whose_plan_nothing_was_charged_under_takes_that_of_the_next_run(bench):
    first, second = bench.load(PLD), bench.load(PLD | {"toy.noise_multiplier": 7.0})
    account.open_account(first, method_named("toy").planned(first)).close()
    bench.run("out", PLD | {"toy.noise_multiplier": 7.0})
    assert len(bench.charges()) == 4
    with pytest.raises(rp.RayPrivacyError, match="plan"):  # under which something was charged by now
        bench.run("again", PLD | {"toy.noise_multiplier": 6.0})
    with rp.Ledger.open(second.privacy.ledger) as ledger:
        assert [entry.kind for entry in ledger.entries("talk")].count("plan") == 2
        ledger.verify()


def test_a_begun_run_is_refused_before_another_charge_where_its_plan_has_changed(bench, monkeypatch):
    real = Run.stage

    @contextmanager
    def dying(self, name):
        with real(self, name):
            yield
        if name == LENGTHS:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "stage", dying)
        with pytest.raises(KeyboardInterrupt):
            bench.run()
    charged = bench.charges()
    assert len(charged) == 1
    other = bench.load({"toy.noise_multiplier": 8.01})
    with monkeypatch.context() as patch:
        planned = type(method_named("toy")).planned
        patch.setattr(type(method_named("toy")), "planned", lambda self, recipe: planned(self, other))
        with pytest.raises(rp.ConfigError, match=r"was charged for .*8\.0.*, which the installed versions do not plan"):
            bench.run()
    assert bench.charges() == charged
    bench.run()
    assert len(bench.charges()) == 4


def test_a_second_process_is_told_so(bench, monkeypatch):
    began, go_on, real, said = threading.Event(), threading.Event(), context.RunContext.shard, []

    def waiting(self):
        began.set()
        assert go_on.wait(120)
        return real(self)

    monkeypatch.setattr(context.RunContext, "shard", waiting)
    first = threading.Thread(target=lambda: said.append(bench.run()))
    first.start()
    assert began.wait(120)
    second = run_command(["run", str(bench.recipe), "--resume", "--out", "out"], bench.folder)
    go_on.set()
    first.join()
    assert second.returncode == 2
    assert "another process works in" in " ".join(second.stderr.split())
    assert len(said) == 1, "the first one is not disturbed"
    assert len(bench.charges()) == 4
