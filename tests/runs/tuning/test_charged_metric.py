"""The charged metric: what is refused, what a trial is billed, and that private losses leave in noisy form alone."""

import json
import math
import random
import shutil
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from small_jobs import WORDS

from rayprivacy.accounting import renyi
from rayprivacy.auditing.scoring import ModelLoss, Scored, joint_losses
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, ReleaseError
from rayprivacy.core.keys import create_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout
from rayprivacy.corpus.manifest import ShardManifest, read_holdout, write_part
from rayprivacy.corpus.users import Dropped
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.histogram import SCALE
from rayprivacy.runs.directory import Run
from rayprivacy.tuning import heldout_loss as metric
from rayprivacy.tuning.budgeted import can_pay
from rayprivacy.tuning.space import load_space
from rayprivacy.tuning.trainable import REFUSED, UTILITY, _Runner
from rayprivacy.tuning.trials import Trials

METRIC: dict[str, Any] = {"name": "heldout_loss", "noise_multiplier": 0.5, "max_tokens": 12}
FIXED, HALF = ({"corpus": {"holdout": share}} for share in (0.4, 0.5))
VALUES = {"training.clipping_norm": 1.0}
USERS = 20
PHRASES: dict[str, Any] = {"recipe": "seqpate.yaml", "search": {"votes.queries": {"choice": [20, 40]}}}
PHRASES["fixed"] = {
    "privacy": {"unit": "phrase"},
    "corpus": {"holdout": 0.4, "phrases": "secrets.txt", "max_shards_per_phrase": 1},
}


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ({}, r"corpus\.holdout is 0 .*set fixed\.corpus\.holdout"),
        (PHRASES, r"privacy\.unit is 'phrase' .*use public_perplexity"),
    ],
    ids=["no holdout", "phrase"],
)
def test_what_cannot_be_charged_is_refused_at_once(bench, blocks, says):
    with pytest.raises(ConfigError, match=says):
        bench.search(bench.space(metric=METRIC, **blocks))
    assert not [name for name in ("out", "ledger.db", "secret.key") if (bench.folder / name).exists()]


def test_every_report_is_on_the_bill_behind_its_chunk(bench):
    def bill(**blocks):
        return bench.trials(fixed=FIXED, **blocks).bill(VALUES)

    free, once, each = bill(), bill(metric=METRIC), bill(metric=METRIC, pruning={"grace": 1})
    run, report = free[0][0], once[-1][1]
    assert [event for _, event in once] == [event for _, event in free] + [report]
    assert [event for _, event in each] == [free[0][1], report, free[1][1], report]
    assert [name == run for name, _ in each] == [True, False, True, False]
    assert len({name for name, _ in each}) == 3
    assert once[-1] == each[-1]  # pruned or not, the whole model's figure is one release
    assert (report.event.noise_multiplier, report.count) == (0.5, 1)
    assert bill(metric=METRIC | {"most": 8.0})[-1][0] != once[-1][0]


def test_a_trial_begins_only_if_the_account_can_pay_its_reports_too(bench):
    """They are counted for running trials and for a new one, also where some are paid already."""
    trials = bench.trials(fixed=FIXED, metric=METRIC, pruning={"grace": 1})
    bill, other, protection = trials.bill(VALUES), {"training.clipping_norm": 2.0}, trials.protection(VALUES)
    order = renyi.best_order([event for _, event in bill] * 2, 1e-6)
    price = {name: sum(renyi.rdp(event, (order,))[0] for at, event in bill if at == name) for name, _ in bill}
    run, first, second = price
    room = 2 * price[run] + 1.5 * (price[first] + price[second])  # one trial with reports; two without
    ledger = bench.account(renyi.epsilon_at(room, order, 1e-6), order=order)

    def fits(*values):
        return can_pay(ledger, "search", [trials.bill(each) for each in values], protection)

    assert fits(VALUES)
    assert not fits(VALUES, other)
    for (name, event), rung in zip(bill, (1, 0, 2), strict=False):  # chunk, report, chunk: one report is owed
        ledger.reserve("search", name, "0" * 64, event, rung=rung, protection=protection)
        assert fits(VALUES)
    assert not fits(VALUES, other)
    assert fits(VALUES, VALUES)  # twice the report that is owed still fits
    ledger.close()


class Measured:
    """A trial as it is after its last chunk, without Ray: shards with a hold-out, a model, an account."""

    def __init__(self, bench, base, epsilon=80.0, unit="user", **metric):
        bound = {"max_records_per_user": None} if unit == "record" else {}
        fixed = {"corpus": {"holdout": 0.4} | bound, "privacy": {"unit": unit}}
        self.trials = bench.trials(fixed=fixed, metric=METRIC | metric)
        self.config, self.recipe = self.trials.space.metric, self.trials.recipe(VALUES).absolute()
        self.key = create_key(Path(self.recipe.privacy.key))
        self.run: Run[Any] = Run.open(self.trials.folder(self.recipe), self.recipe, resume=True, measured=False)
        shutil.copytree(base, self.run.root / "model")
        self.rows = [(f"user-{u:02}", n, _sentence(u, n)) for u in range(USERS) for n in range(1 + u % 6)]
        self.shards(self.rows)
        bench.account(epsilon, PrivacyUnit(unit), order=4.0).close()

    def shards(self, rows):
        """All users of `rows` are held out."""
        out, unit = self.run.private("shards"), self.recipe.privacy.unit
        schema = Layout(self.recipe.corpus, 1, 1, unit).schema
        out.mkdir(exist_ok=True)
        columns = [[-1] * len(rows), *(list(column) for column in zip(*rows, strict=True))]
        entries = {
            part: write_part(table, part, self.key, out, unit)
            for part, table in ((HOLDOUT, pa.table(columns, schema=schema)), (0, schema.empty_table()))
        }
        most = self.recipe.corpus.max_records_per_user
        ShardManifest("", 1, 1, most, 0.4, (entries[0],), entries[HOLDOUT], Dropped(), unit).write(out)

    def scale(self, factor):
        """Another model, of all weights times a factor."""
        path = self.run.root / "model" / "model.safetensors"
        save_file({name: each * factor for name, each in load_file(path).items()}, path, {"format": "pt"})

    def figure(self, chunk=2):
        return metric.heldout_loss(self.run, self.config, chunk)

    def sums(self):
        scoring, mechanism = metric.Scoring.of(self.run, self.config), metric.report_mechanism(self.config, self.recipe)
        return metric._sums(self.run, scoring, mechanism)


def exact(root):
    """The mean over users of the mean loss of their first four texts, with nothing taken from what is tested."""
    backbone = load_backbone(ModelConfig(base=str(root / "model"), dtype="float32"))
    table = read_holdout(root / "private" / "shards")
    loss = ModelLoss(backbone, METRIC["max_tokens"]).per_token
    means = []
    for user in sorted(set(table["user"].to_pylist())):
        own = table.filter(pc.equal(table["user"], user))["text"].to_pylist()[:4]
        means.append(float(np.mean([loss([text])[0] for text in own])))
    return float(np.mean(means))


def _sentence(user, number):
    """Of very different lengths, so that a common batch would be padded otherwise for each set of users."""
    return " ".join(WORDS[(user * 7 + number * 3 + place) % len(WORDS)] for place in range(1 + (user * 5 + number) % 9))


def test_a_report_is_paid_once_and_noisy(bench, tiny_base, monkeypatch):
    trial = Measured(bench, tiny_base)
    figure = trial.figure()
    assert 0 < abs(figure - exact(trial.run.root)) < 6 * 0.5 * 10 / USERS
    name = metric.report_release(trial.config, trial.recipe, 2)
    assert bench.charges() == [(name, 0, "committed")]
    assert trial.trials.bill(VALUES)[-1][0] == name
    (charge,) = bench.ledger.charges_of("search", name)
    assert charge.event == trial.trials.bill(VALUES)[-1][1]

    monkeypatch.setattr(metric, "_sums", lambda *_: pytest.fail("read private text again"))
    assert trial.figure() == figure
    monkeypatch.undo()
    for kept in trial.run.root.glob("private/metric/*"):
        assert kept.stat().st_mode & 0o077 == 0
        kept.unlink()
    monkeypatch.setattr(metric, "unit_losses", lambda units, _: np.zeros(len(units)))
    assert trial.figure() == figure  # the same question, whatever another machine would answer
    monkeypatch.undo()
    assert len(bench.charges()) == 1
    assert trial.figure(chunk=1) != figure  # another report, another draw
    trial.shards(trial.rows[:-1])
    trial.figure()  # of another hold-out, and another charge
    trial.scale(1.5)
    assert abs(trial.figure() - exact(trial.run.root)) < 6 * 0.5 * 10 / USERS  # of other weights
    assert len(bench.charges()) == 4
    bench.ledger.verify()


def test_the_private_figure_is_nowhere_but_in_the_private_folder(bench, tiny_base, nowhere):
    trial = Measured(bench, tiny_base)
    trial.figure()
    mean, sums = exact(trial.run.root), trial.sums()
    secrets = [f"{figure:.6g}".encode() for figure in (mean, math.exp(mean))]
    secrets += [each.tobytes() for each in sums] + [str(each).encode() for each in sums.tolist()]
    secrets += [b"user-07", max((text for *_, text in trial.rows), key=len).encode()]
    (bench.folder / "talk.parquet").unlink()
    nowhere(secrets, bench.folder)
    (kept,) = trial.run.root.glob("private/metric/*")
    assert kept.read_bytes() == sums.tobytes()  # the search above would have found it


def test_a_report_that_the_account_cannot_pay_is_refused_and_leaves_no_charge(bench, tiny_base):
    trial = Measured(bench, tiny_base, epsilon=5.0)
    with pytest.raises(BudgetRefusedError):
        trial.figure()
    assert not list(trial.run.root.glob("private/metric/*"))
    assert bench.charges() == []


def test_a_figure_that_noise_hides_is_an_error_that_is_paid_once(bench, tiny_base):
    trial = Measured(bench, tiny_base, noise_multiplier=1e5)
    for _ in range(2):
        with suppress(ReleaseError):  # noise may leave both cells full, rarely
            assert 0 < trial.figure() < 10
        assert len(bench.charges()) == 1


def test_a_unit_that_joins_moves_the_sums_by_what_it_brings_alone(bench, tiny_base):
    """On the real path, to the last bit: the losses of the others do not know that it is there."""
    trial = Measured(bench, tiny_base)

    def sums(rows):
        trial.shards(rows)
        return trial.sums()

    rows = trial.rows[:30]
    all_of_them = sums(rows)
    for user in sorted({row[0] for row in rows})[::3]:
        alone = sums([row for row in rows if row[0] == user])
        assert (all_of_them - sums([row for row in rows if row[0] != user])).tolist() == alone.tolist()
        assert alone.sum() == SCALE
        assert math.hypot(*alone.tolist()) <= SCALE


def test_a_unit_that_joins_changes_no_bit_of_the_losses_of_others(tiny_backbone):
    """In one batch the losses of many of these differ in their last bits, which the grid would hide nearly always."""
    scored = Scored("model", lambda _: "", lambda row: str(row["text"]), 60)

    def loss(rows):
        return joint_losses([scored, scored], [tiny_backbone] * 2, rows)

    dice = random.Random(1)
    texts = ["the cat sat on my mat and " + " ".join(dice.choices(WORDS, k=dice.randint(1, 60))) for _ in range(24)]
    units = [[{"text": text} for text in texts[first : first + 2]] for first in range(0, 24, 2)]
    whole = metric.unit_losses(units, loss).tolist()
    assert len(set(whole)) == 12
    assert [float(metric.unit_losses([unit], loss)[0]) for unit in units] == whole
    assert metric.unit_losses(units[1:], loss).tolist() == whole[1:]
    assert metric.unit_losses(units[::-1], loss).tolist() == whole[::-1]


def test_the_control_code_is_context_and_all_models_of_a_release_are_scored(tiny_backbone):
    row = {"text": "we go home now", "topic": "soup"}
    text = Scored("model", lambda _: "", lambda row: str(row["text"]), 12)
    coded = replace(text, prefix=lambda row: f"topic: {row['topic']} ")
    behind, bare = (joint_losses([each], [tiny_backbone], [row]) for each in (coded, text))
    assert behind == ModelLoss(tiny_backbone, 12).per_token([row["text"]], ["topic: soup "]) != bare
    pair = (text, replace(text, text=lambda row: str(row["topic"])))
    (loss, tokens), (more, others) = (each.totals(tiny_backbone, [row]) for each in pair)
    assert joint_losses(pair, [tiny_backbone] * 2, [row]) == (loss + more) / (tokens + others)


def test_a_broken_model_counts_as_the_worst(bench, tiny_base):
    trial = Measured(bench, tiny_base)
    trial.scale(math.nan)
    assert trial.sums().tolist() == [USERS * SCALE, 0]


def test_with_unit_record_every_record_is_a_unit(bench, tiny_base):
    trial = Measured(bench, tiny_base, unit="record")
    assert trial.sums().sum() == len(trial.rows) * SCALE
    assert 0 < trial.figure() < 10
    assert metric.report_mechanism(trial.config, trial.recipe).unit is PrivacyUnit.RECORD
    assert len(bench.charges()) == 1


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trials_pay_for_their_chunks_and_their_reports_once(bench, local_ray, nowhere):
    blocks = {"trials": 2, "metric": METRIC, "fixed": HALF, "pruning": {"grace": 2}}
    space = bench.space(budget={"account": "search", "epsilon": 60.0}, **blocks)
    told = Console(record=True, file=(bench.folder / "told").open("w"), width=200)
    outcome = bench.search(space, console=told)
    trials, charges = Trials.of(load_space(space), bench.folder / "out"), bench.charges()
    assert {state for *_, state in charges} == {"committed"}
    for row in outcome.rows:
        values = json.loads(row.values)
        recipe = trials.recipe(values)
        assert recipe.release_id == row.release_id
        assert (row.state, row.charges, row.planned) == ("finished", 4, 4)
        own = [name for name, *_ in charges if name.startswith(row.release_id)]
        assert own == [name for name, _ in trials.bill(values)]  # chunk, report, chunk, report
        truth = exact(trials.folder(recipe))
        assert 0 < abs(row.utility - truth) < 10
        nowhere([f"{each:#.6g}".encode() for each in (truth, math.exp(truth))], bench.folder, local_ray)
        assert not (trials.folder(recipe) / "metrics.json").exists()
        assert trials.report(values, 2)[UTILITY] == row.utility  # what a search that is resumed runs again
    assert len(charges) == 2 * 4
    assert outcome.spent == pytest.approx(sum(row.share for row in outcome.rows), rel=1e-6)
    assert outcome.spent <= 1
    assert f"{outcome.best.utility:.4g}" in told.export_text()
    assert bench.search(space, resume=True).rows == outcome.rows
    assert bench.charges() == charges


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_report_that_is_refused_ends_the_trial(bench, local_ray):
    """Room for the chunks and for half a report: nothing is measured, and the cap is kept."""
    trials = bench.trials(metric=METRIC, fixed=HALF)
    events = trials.charges(VALUES)
    order = renyi.best_order(events, 1e-6)
    *chunks, report = (renyi.rdp(event, (order,))[0] for event in events)
    bench.account(renyi.epsilon_at(sum(chunks) + report / 2, order, 1e-6), order=order)
    with chdir(bench.folder):  # the runner goes there, and is an actor elsewhere
        assert _Runner(trials, VALUES, ".").report(1) == {REFUSED: True, "done": True}
    assert bench.charges() == [(trials.recipe(VALUES).release_id, rung, "committed") for rung in (1, 2)]
    assert bench.ledger.status("search").share <= 1
