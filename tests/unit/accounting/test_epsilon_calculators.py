"""The calculators of the command line, the least noise and its levels: known figures, there and back, bad input."""

import itertools
import json
import math
import re
from typing import Any

import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
)
from typer.testing import CliRunner

from rayprivacy.accounting.accountant import figures
from rayprivacy.accounting.calibrate import least_sigma, least_sigma_near
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.schedule import MOST_LEVELS, NoiseSchedule
from rayprivacy.cli.epsilon import app
from rayprivacy.core.errors import ConfigError, RayPrivacyError

HUGE = "1" + "0" * 400
DPSGD = "dpsgd --q 0.01 --steps 1000 --delta 1e-5"
VOTES = "seqpate --queries 1000 --teachers 1000"
TWO = "two-stage --q1 .02 --steps1 500 --q2 .01 --steps2 1000 --delta 1e-5"
SELECT = "select --q 0.01 --steps 1000 --delta 1e-5 --trials 10"
EDP = "edpsgd --steps 100 --workers 4"
KNOWLEDGE = "knowledge --support 68 --keys-per-user 40"
SANTEXT = "santext --tokens 100 --diameter 1.5"


def _text(line):
    result = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _json(line):
    parsed: dict[str, Any] = json.loads(_text(f"{line} --json"))
    return parsed


@pytest.mark.parametrize(
    ("line", "first", "others"),
    [
        ("gaussian --count 100 --sigma 10", "epsilon = 4.88655 at delta 1e-06\n", []),
        (f"{VOTES} --epsilon 3", "sigma = 48.8212 per query; noise std 69.04 on the sum, 0.06904 on the mean\n", []),
        (f"{VOTES} --sigma 50 --as-published", "epsilon = ", []),
        (f"{DPSGD} --sigma 1 --as-published", "epsilon = 1.828", ["rdp 2.101"]),
        (f"{TWO} --sigma1 .9 --sigma2 .9", "epsilon = 4.15", ["stage 1 alone 3.50", "stage 2 alone 2.31", "rdp 4.66"]),
        (f"{SELECT} --sigma 1", "epsilon = ", ["paying for all of 10 runs 6."]),
        (
            f"{KNOWLEDGE} --users 2000 --epsilon 3",
            "sigma = 1.58769 for epsilon 3, delta 1e-06; a key needs about 57 users (2.85% of 2000)\n",
            ["86.41% would be released", "5e-07 is kept for thresholds", "5e-07 is left for noise"],
        ),
        (
            f"{KNOWLEDGE} --epsilon 3 --known-answers 12",
            "sigma = 1.58769 for epsilon 3, delta 1e-06; a key needs about 57 users, one of 12 known 34\n",
            ["86.41% would be released", "threshold 56.96, and of known answers, above 33.55, 99.97%"],
        ),
        (f"{SANTEXT} --epsilon 2", "epsilon = 300 per document", ["no meaningful guarantee"]),
        (f"{DPSGD} --sigma 0.04", "epsilon = ", ["no pld figure", "no meaningful guarantee"]),
    ],
)
def test_what_is_printed(line, first, others):
    printed = _text(line)
    assert printed.startswith(first)
    assert [said for said in others if said not in printed] == []
    assert ("as published" in printed) == ("--as-published" in line)


def test_seqpate_for_phrases_needs_more_noise_and_says_what_a_user_has():
    user, phrase = _json(VOTES), _json(f"{VOTES} --shards-per-phrase 4")
    assert phrase["noise"]["std_of_sum"] == pytest.approx(4 * user["noise"]["std_of_sum"])
    assert (user["unit"], phrase["unit"]) == ("user", "phrase")
    assert f"{epsilon_of(math.sqrt(1000) / (4 * user['noise']['sigma']), 1e-6):.6g}" in phrase["assumptions"][1]


def test_the_records_of_one_owner_are_accounted_for_together():
    owner = _json("dpsgd --q 0.05 --steps 100 --sigma 2 --delta 1e-5 --records-per-user 2")
    assert owner["epsilon"] == pytest.approx(2.377, abs=1e-3)
    assert owner["epsilon"] < owner["accountants"]["rdp"]


def test_bands_are_charged_as_fewer_steps_at_a_higher_rate():
    banded = _json("dpsgd --q 0.05 --steps 200 --sigma 2 --bands 8")
    plain = _json("dpsgd --q 0.4 --steps 25 --sigma 2")
    assert (banded["epsilon"], banded["accountants"]) == (plain["epsilon"], plain["accountants"])
    printed = [_text(f"dpsgd --q 0.05 --steps 200 --epsilon 8 --bands {b}") for b in (1, 8)]
    errors = [float(re.search(r"root mean square over the steps: ([\d.]+)", text)[1]) for text in printed]  # type: ignore[index]
    assert errors[1] < 0.8 * errors[0]
    assert "hashed into 8 groups" in printed[1]


def test_select_stands_beside_paying_for_all():
    found = _json(f"{SELECT} --sigma 1 --distribution poisson --as-published")
    assert 3.4 < found["epsilon"] < 4.4
    assert found["published"][0]["epsilon"] == pytest.approx(1.828, abs=2e-3)


def test_edpsgd_has_less_noise_than_printed():
    found = _json(f"{EDP} --z0 8 --as-published")
    assert found["noise"] == {"z0": 8.0, "effective": 2.0, "effective_last": 2.0}
    assert found["epsilon"] == pytest.approx(epsilon_of(10 / 2, 1e-6))
    assert found["published"][0]["epsilon"] < found["epsilon"] / 4
    assert _json(f"{EDP} --z0 8 --per-worker sqrt-n")["noise"]["effective"] == 4.0
    assert _json(f"{EDP} --z0 8 --micro-batches 4")["noise"]["effective"] == 1.0
    decayed_run, sampled = _json(f"{EDP} --z0 8 --decay .99"), _json(f"{EDP} --z0 8 --q 0.01")
    assert decayed_run["noise"]["effective"] == 2.0, "of the first step, whatever comes after"
    mu = math.sqrt(sum((2 * 0.99**t) ** -2 for t in range(100)))
    assert decayed_run["epsilon"] == pytest.approx(epsilon_of(mu, 1e-6), rel=1e-9)
    assert sampled["epsilon"] < found["epsilon"]
    assert set(sampled["accountants"]) == {"pld", "rdp"}


def test_edpsgd_as_the_paper_prints_it_and_as_it_is():
    paper = "edpsgd --z0 1 --steps 100 --workers 8 --delta 5e-4"
    found = _json(f"{paper} --as-published")
    assert found["epsilon"] == pytest.approx(1785.17, abs=0.01)
    assert [figure["epsilon"] for figure in found["published"]] == pytest.approx([89.0, 88.99], abs=0.01)
    assert _json(f"{paper} --per-worker sqrt-n")["epsilon"] == pytest.approx(264.885, abs=1e-3)
    halved = _json(f"{paper} --max-scale 2")["noise"]
    assert halved["effective"] == found["noise"]["effective"] / 2


def test_edpsgd_by_epoch_is_the_composed_events():
    run = "--z0 6 --steps 100 --workers 8 --per-worker sqrt-n --q .05"
    found = _json(f"edpsgd {run} --schedule linear --tau .1 --steps-per-epoch 50 --as-published")
    by_hand = [(PoissonSampledDpEvent(0.05, GaussianDpEvent(3 / (1 + 0.1 * epoch))), 50) for epoch in range(2)]
    assert found["accountants"] == pytest.approx(figures(by_hand, 1e-6).by, rel=1e-6)
    assert found["noise"]["effective_last"] == 3 / 1.1
    rho = 0.5 / 36 + 0.5 / (6 / 1.1) ** 2
    by_epoch = rho + 2 * math.sqrt(rho * math.log(1e6))
    assert found["published"][1]["epsilon"] == pytest.approx(by_epoch)
    short = _json(f"{EDP} --z0 8 --decay 0.5")
    assert short == _json(f"{EDP} --z0 8 --schedule exponential --tau {math.log(2)!r}")


def test_santext_prices_a_document():
    back = _json(f"{SANTEXT} --document-epsilon 30")
    assert (back["epsilon"], back["delta"]) == (pytest.approx(30), None)
    assert back["noise"]["epsilon_per_token"] == pytest.approx(0.2)


NOISY = ["gaussian --count 100", "seqpate --queries 100 --teachers 9", DPSGD, SELECT, EDP, KNOWLEDGE]
NOISY.append(f"{EDP} --q .05 --schedule linear --tau .5 --steps-per-epoch 50")


@pytest.mark.parametrize("line", NOISY)
def test_from_epsilon_to_noise_and_back(line):
    name = "z0" if line.startswith(EDP) else "sigma"
    noise = _json(f"{line} --epsilon 2.5")["noise"][name]
    assert 2.5 * (1 - 1e-3) <= _json(f"{line} --{name} {noise!r}")["epsilon"] <= 2.5 * (1 + 1e-8)


def test_one_multiplier_for_both_stages():
    found = _json(f"{TWO} --epsilon 3")
    assert 2.99 < found["epsilon"] <= 3.0
    assert found["noise"]["sigma1"] == found["noise"]["sigma2"]


def test_little_noise_falls_back_on_renyi_orders():
    for line in (f"{DPSGD} --sigma 1e-60", f"dpsgd --q .5 --sigma 1e90 --steps {2**53}"):
        assert set(_json(line)["accountants"]) == {"rdp"}


NONE, WIDE = "0 -1 nan", f"0 -5 {HUGE}"
STEPS, EDP1 = f"{DPSGD} --sigma 1", f"{EDP} --z0 1"
BAD = {  # arguments that are right, and options with values that are not: the last value of an option counts
    "gaussian --count 3 --sigma 1": f"--sigma {NONE} inf, --count {WIDE} {2**53 + 1}, --delta {NONE} 1, --epsilon 1",
    "gaussian": f"--epsilon {NONE} inf, ",
    f"{VOTES} --sigma 1": f"--queries {HUGE}, --teachers 0, --shards-per-phrase 0",
    STEPS: f"--q {NONE} 1.01, --steps {WIDE}, --sigma nan inf 0, --delta 0 1 nan, --records-per-user 0 1000 {HUGE}",
    DPSGD: "--epsilon nan inf 0, ",
    f"{STEPS} --bands 2": f"--bands 0 -1 3 200 {HUGE}, --records-per-user 2, --steps 200000",
    f"{STEPS} --as-published": "--bands 8",
    f"{TWO} --sigma1 1": ", --sigma2 nan",
    f"{TWO} --sigma1 1 --sigma2 1": "--epsilon 1",
    f"{SELECT} --sigma 1": "--trials 1 nan inf 1e6, --shape 2, --distribution negative-binomial",
    f"{SELECT} --sigma 1 --distribution negative-binomial": "--shape nan",
    EDP1: f"--z0 nan 0, --decay nan 0 1.1 1e-300, --schedule linear, --tau 1, --steps-per-epoch 0, --steps {HUGE}",
    f"{EDP1} --max-scale 2": "--max-scale 0 nan inf, --workers 0",
    f"{EDP1} --schedule linear --tau 1": "--tau 0 nan, --decay .9",
    f"{EDP1} --workers {2**53}": f"--micro-batches {2**53}",
    f"{SANTEXT} --epsilon 1": f"--tokens {HUGE}, --diameter nan, --epsilon inf",
    SANTEXT: ", --epsilon inf",
    f"{KNOWLEDGE} --sigma 1": f"--keys-per-user {WIDE} 10001, --support {NONE}, --users {NONE}, --releases {WIDE}"
    f", --known-answers {WIDE}",
    f"{KNOWLEDGE} --epsilon 1": f"--share-of-delta {NONE} 1, --delta {NONE} 1, --epsilon 0 nan, --sigma 1",
    KNOWLEDGE: f", --sigma {NONE} 1e-4 1e10",
}


@pytest.mark.parametrize("right", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(right):
    for each in BAD[right].split(","):
        option, *values = each.split() or [""]
        for bad in [[option, value] for value in values] or [[]]:
            error = CliRunner().invoke(app, [*right.split(), *bad]).exception
            assert isinstance(error, RayPrivacyError), bad
            assert error.exit_code == 2
            assert re.fullmatch(r".{1,248}\.", str(error))


def _inverse(sigma):
    return 1 / sigma


def test_calibration_rounds_up_and_knows_its_range():
    for wanted in (1e-6, 0.37, 5.0, 900.0):
        assert 1 / wanted <= least_sigma(_inverse, wanted) <= 1 / wanted * (1 + 2.1e-4)
    for wrong, cost in ((1.0, lambda s: 2.0), (1.0, lambda s: 0.0), (math.nan, _inverse), (0.0, _inverse)):
        for start, guess in itertools.product((1.0, 1e9 / 4, 1e9), (None, _inverse)):
            with pytest.raises(ConfigError, match="epsilon is"):
                least_sigma(cost, wrong, start, guess=guess)


@pytest.mark.parametrize("wanted", [0.02, 0.1, 3.0, 900.0])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("low", [0.0, 1e-2, 3.0])
def test_a_guess_saves_costs_and_leaves_the_noise_as_it_is(power, wanted, low):
    """Guesses that are good, 40 times too high or low, or fall by another power; costs without a figure below some."""
    asked: list[float] = []

    def cost(sigma):
        asked.append(sigma)
        return 40 / sigma**power + 0.3 / sigma if sigma > low else math.inf

    found = least_sigma(cost, wanted)
    without = len(asked)
    good, poor = [(lambda s: 40 / s**power, 10), (lambda s: 1 / s**power, 12)], [(lambda s: 1600 / s**1.2, 18)]
    for guess, most in (*good, *poor, (lambda s: 5.0, 30)):
        asked.clear()
        assert least_sigma(cost, wanted, guess=guess) == found
        assert len(asked) <= (most if low == 0 else without + 10)


@pytest.mark.parametrize("power", [0.8, 1.0, 2.5])
@pytest.mark.parametrize("wanted", [0.1, 8.0])
def test_a_search_by_a_bad_guess_asks_seldom_and_rounds_up(power, wanted):
    """A guess that is 20 times too low, falls by another power, or has no figure below some noise."""
    asked: list[float] = []

    def cost(sigma):
        asked.append(sigma)
        return 40 / sigma**power if sigma > 0.5 else math.inf

    found = least_sigma_near(cost, wanted, lambda sigma: 2 / sigma)
    assert len(asked) < 12
    assert wanted * (1 - 1e-3) <= cost(found) <= wanted
    assert found == pytest.approx(least_sigma(cost, wanted), rel=2e-3)
    with pytest.raises(ConfigError, match="no noise multiplier"):
        least_sigma_near(lambda sigma: 99.0, wanted, lambda sigma: 2 / sigma)


LINEAR = NoiseSchedule("linear", 0.1, steps_per_epoch=50)
SCHEDULES = [NoiseSchedule("exponential", 0.01), NoiseSchedule("linear", 0.1, 3), NoiseSchedule("linear", 2.0)]


def test_epochs_are_levels_with_the_noise_of_the_rule():
    assert LINEAR.levels(500, chunk=25) == tuple((1 / (1 + 0.1 * epoch), 50) for epoch in range(10))
    assert LINEAR.levels(120, chunk=25)[-1] == (1 / 1.2, 20)
    assert NoiseSchedule("exponential", 0.5, 10).levels(20) == ((1.0, 10), (math.exp(-0.5), 10))
    assert NoiseSchedule().levels(7, chunk=2) == ((1.0, 7),)
    with pytest.raises(ConfigError, match="let an epoch be a multiple of chunk"):
        LINEAR.levels(500, chunk=20)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("steps", "chunk"), [(500, 1), (500, 3), (99, 3), (7, 3), (1, 1)])
def test_levels_are_few_whole_chunks_and_never_above_the_rule(schedule, steps, chunk):
    levels = schedule.levels(steps, chunk)
    assert len(levels) <= MOST_LEVELS
    assert sum(times for _, times in levels) == steps
    assert all(times % chunk == 0 for _, times in levels[:-1])
    by_step = [factor for factor, times in levels for _ in range(times)]
    assert all(given <= schedule.factor(step) for step, given in enumerate(by_step))
    assert by_step[-1] == schedule.factor(steps - 1)
    assert by_step == sorted(by_step, reverse=True)


@pytest.mark.parametrize(
    ("kind", "tau", "epoch", "says"),
    [
        ("cosine", 0.1, 1, "'cosine'"),
        ("linear", 0.1, 0, "steps_per_epoch is 0"),
        ("linear", 0.0, 1, "tau is 0.0"),
        ("exponential", math.nan, 1, "tau is nan"),
        ("constant", 0.1, 1, "tau is 0.1"),
    ],
)
def test_what_is_no_schedule_is_refused(kind, tau, epoch, says):
    with pytest.raises(ConfigError, match=says):
        NoiseSchedule(kind, tau, epoch)
