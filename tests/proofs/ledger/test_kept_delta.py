"""Accounts that keep a part of their delta for thresholds: two sums, two limits, and an auditor who adds both up."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from handmade import Handmade, gaussian, gdp_cost, judge, renyi_cost, steps, times
from typer.testing import CliRunner
from usual import TERMS, certificate, opened, refused, reserve, run

from rayprivacy.accounting.accountant import epsilon, plan_epsilon, plan_lines
from rayprivacy.accounting.events import ThresholdedGaussianDpEvent
from rayprivacy.cli import app
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.certificate import to_markdown
from rayprivacy.ledger.export import export_ledger, verify_export
from rayprivacy.ledger.least_noise import gaussian_noise, is_enough, least_noise
from rayprivacy.ledger.rules import GRID, less, parameters_for, rule_for
from rayprivacy.ledger.store import Ledger

KEPT = 5e-7
CAP = TERMS[2]
COUNTS, GAUSS = ThresholdedGaussianDpEvent, GaussianDpEvent
SUMS = {"gdp": {}, "zcdp": {}, "rdp": {"order": 8.0}}
every_sum = pytest.mark.parametrize("composition", SUMS)
PART = f" of {KEPT:g} left for thresholds: ask for less, or stop here"


@pytest.fixture
def url(tmp_path):
    """One database is enough: what is added up here is the same integers as in every other charge."""
    return f"sqlite:///{tmp_path}/ledger.db"


def _account(url, composition="gdp", kept=KEPT, **more):
    return opened(url, "a", composition=composition, threshold_delta=kept, **SUMS.get(composition, {}), **more)


def _rule(composition, budget=CAP, kept=None):
    return rule_for(composition, budget, parameters_for(composition, budget, **SUMS[composition], threshold_delta=kept))


@every_sum
def test_noise_has_the_rest_of_delta_and_no_more(composition):
    kept, rest = _rule(composition, kept=KEPT), _rule(composition, Budget(CAP.epsilon, CAP.delta - KEPT))
    assert (kept.size, rest.size) == (2, 1)
    assert kept.limit == rest.limit < _rule(composition).limit
    event = ComposedDpEvent([COUNTS(9.0, 1e-7), GAUSS(7.0)])
    plain = ComposedDpEvent([GAUSS(9.0), GAUSS(7.0)])
    noise, deltas = kept.cost(event, (0, 0))
    assert (noise,) == rest.cost(plain, (0,))
    assert deltas == steps(Fraction(1e-7))
    assert kept.epsilon((noise, deltas)) == rest.epsilon((noise,))
    assert kept.left((noise, deltas)) == rest.left((noise,))
    assert kept.admits((kept.limit, kept.thresholds((0, 0))[1] * GRID))
    assert not kept.admits((kept.limit + 1, 0))
    assert not kept.admits((0, kept.thresholds((0, 0))[1] * GRID + 1))


@every_sum
def test_deltas_add_up_to_the_part_that_is_kept(url, composition):
    ledger = _account(url, composition)
    with pytest.raises(
        BudgetRefusedError, match=r"asks for delta 5\.001e-07 for its threshold, and account 'a' has 5e-07"
    ):
        reserve(ledger, "a", "too-much", COUNTS(60.0, 5.001e-7))
    for number in range(4):
        run(ledger, "a", f"run-{number}", COUNTS(60.0, KEPT / 4))
    for number, delta in enumerate((1e-25, KEPT / 4, 9e-7)):
        with pytest.raises(BudgetRefusedError, match=PART):
            reserve(ledger, "a", f"more-{number}", COUNTS(60.0, delta))
    run(ledger, "a", "noise", GAUSS(60.0))  # what has no threshold still fits
    status = ledger.status("a")
    assert status.thresholds == (KEPT, KEPT)
    assert status.figures["threshold_delta_spent"] == KEPT
    assert ledger.verify().charges == 5


@every_sum
@pytest.mark.parametrize(
    "events",
    [
        [COUNTS(90.0, KEPT / 2), COUNTS(90.0, math.nextafter(KEPT / 2, 1))],  # just above, together
        [SelfComposedDpEvent(COUNTS(900.0, KEPT / 64), 64), COUNTS(90.0, 1e-24)],
        [
            ComposedDpEvent([COUNTS(900.0, KEPT / 3)] * 2),
            COUNTS(900.0, math.nextafter(KEPT / 3, 1)),
            COUNTS(90.0, 2e-23),
        ],
    ],
)
def test_many_small_deltas_that_are_too_much_together(url, composition, events):
    ledger = _account(url, composition)
    for number, event in enumerate(events[:-1]):
        reserve(ledger, "a", f"run-{number}", event)
    with pytest.raises(BudgetRefusedError, match=PART):
        reserve(ledger, "a", "last", events[-1])
    ledger.verify()


@every_sum
def test_what_is_cancelled_is_given_back_to_the_digit(url, composition):
    ledger = _account(url, composition)
    charge = reserve(ledger, "a", "first", COUNTS(9.0, KEPT))
    with pytest.raises(BudgetRefusedError, match=PART):
        ledger.check("a", COUNTS(9.0, 1e-30), ledger.account("a").protection)
    ledger.cancel(charge)
    assert ledger.status("a").balance.used == (0, 0)
    run(ledger, "a", "first", COUNTS(9.0, KEPT))
    assert ledger.status("a").thresholds == (KEPT, KEPT)
    assert ledger.verify().charges == 2


def test_racing_writers_cannot_overspend_the_part(url):
    _account(url)

    def take(number):
        try:
            with Ledger.open(url) as ledger:
                reserve(ledger, "a", f"run-{number}", COUNTS(50.0, KEPT / 5))
        except BudgetRefusedError as error:
            return "left for thresholds" in str(error)
        return "paid"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(take, range(12)))
    assert sorted(map(str, found)) == ["True"] * 7 + ["paid"] * 5
    assert Ledger.open(url).verify().charges == 12 - 7


@pytest.mark.parametrize("composition", [*SUMS, "pld"])
def test_an_account_that_keeps_nothing_takes_no_threshold(url, composition):
    more = {"plan": [GAUSS(20.0)]} if composition == "pld" else SUMS[composition]
    ledger = opened(url, "a", composition=composition, **more)
    run(ledger, "a", "noise", GAUSS(20.0))
    with pytest.raises(EventError, match=r"keeps no part of its delta|neither in the account's plan"):
        reserve(ledger, "a", "counts", COUNTS(900.0, 1e-30))
    assert len(ledger.status("a").balance.used) == 1  # as in every ledger of before
    assert ledger.verify().charges == 1


@every_sum
def test_an_account_that_is_opened_for_a_plan_keeps_what_its_thresholds_take(url, composition):
    plan = [COUNTS(20.0, 1e-7), SelfComposedDpEvent(COUNTS(20.0, 3e-10), 7), GAUSS(20.0)]
    ledger = opened(url, "a", composition=composition, plan=plan)
    parameters = ledger.account("a").parameters
    assert parameters["threshold_delta"] == pytest.approx(1e-7 + 7 * 3e-10, rel=1e-12)
    assert set(parameters) == {"threshold_delta"} | ({"order"} if composition == "rdp" else set())
    for number, event in enumerate([plan[0], *[COUNTS(20.0, 3e-10)] * 7, plan[2]]):  # in parts, it fits to the digit
        run(ledger, "a", f"run-{number}", event)
    with pytest.raises(BudgetRefusedError, match="left for thresholds"):
        reserve(ledger, "a", "more", COUNTS(20.0, 1e-22))
    ledger.verify()


@pytest.mark.parametrize(
    ("composition", "more", "message"),
    [
        ("gdp", {"threshold_delta": 1e-6}, "thresholds take delta 1e-06, and the account's is 1e-06: give them a part"),
        ("zcdp", {"threshold_delta": 2e-6}, "give them a part of it"),
        ("rdp", {"threshold_delta": 0.0, "order": 8.0}, "give them a part of it"),
        ("gdp", {"threshold_delta": math.nan}, "give them a part of it"),
        ("gdp", {"threshold_delta": -1e-7}, "give them a part of it"),
        ("pld", {"threshold_delta": 1e-7}, "composition is 'pld': only 'gdp', 'zcdp' and 'rdp' take one"),
        ("gdp", {"plan": [COUNTS(9.0, 6e-7), COUNTS(9.0, 6e-7)]}, "give them a part of it"),
        ("gdp", {"plan": [COUNTS(9.0, 6e-7)], "threshold_delta": 5e-7}, "thresholds of the plan take 6e-07: raise it"),
    ],
)
def test_a_part_that_is_none_is_refused_before_anything_is_opened(ledger, composition, more, message):
    with pytest.raises(ConfigError, match=message):
        ledger.create_account("a", *TERMS, composition, **more)
    assert [account.name for account in ledger.accounts()] == ["chat"]


def test_a_registered_plan_is_priced_without_what_its_thresholds_take(url):
    plan = [COUNTS(6.0, 2e-7), COUNTS(6.0, 2e-7), LaplaceDpEvent(30.0)]
    ledger = opened(url, "a", composition="pld")
    stated = ledger.register_plan("a", plan)
    assert stated == plan_epsilon(plan_lines([GAUSS(6.0), GAUSS(6.0), LaplaceDpEvent(30.0)]), CAP.delta - 4e-7)
    for wrong in (COUNTS(6.0, 1e-7), COUNTS(7.0, 2e-7), GAUSS(6.0), COUNTS(6.0, 3e-7)):
        with pytest.raises(EventError, match="neither in the account's plan"):
            reserve(ledger, "a", "wrong", wrong)
    for number in range(2):
        run(ledger, "a", f"run-{number}", plan[0])
    with pytest.raises(BudgetRefusedError):
        reserve(ledger, "a", "more", plan[0])
    assert ledger.status("a").thresholds == (0.0, 0.0)
    ledger.verify()
    opened(url, "b", composition="pld")
    with pytest.raises(EventError, match="the thresholds take delta 1e-06, and there is 1e-06 of it in all"):
        ledger.register_plan("b", [COUNTS(900.0, 5e-7)] * 2)


@pytest.mark.parametrize("composition", [*SUMS, "pld"])
def test_noise_that_is_calibrated_for_a_release_with_a_threshold_fits(composition):
    sigma = gaussian_noise(2, less(CAP, KEPT), composition)
    pair = SelfComposedDpEvent(COUNTS(sigma, KEPT / 2), 2)
    assert is_enough(pair, CAP, composition)
    assert not is_enough(SelfComposedDpEvent(COUNTS(sigma * 0.999, KEPT / 2), 2), CAP, composition)
    found = least_noise(lambda sigma: SelfComposedDpEvent(COUNTS(sigma, KEPT / 2), 2), CAP, composition)
    assert found == pytest.approx(sigma, rel=2e-3)


def test_the_certificate_names_what_the_threshold_takes(url):
    ledger = _account(url)
    run(ledger, "a", "run", COUNTS(20.0, 1e-7))
    found = certificate(ledger, "a")
    assert found["parameters"]["threshold_delta"] == KEPT
    assert (found["epsilon"], found["delta"]) == (CAP.epsilon, CAP.delta)
    (row,) = found["events"]
    assert (row["kind"], row["sigma_eff"], row["count"]) == ("thresholded-gaussian", 20.0, 1)
    assert found["spent_diagnostic"]["epsilon_rdp"] == epsilon([GAUSS(20.0)], CAP.delta - 1e-7, "rdp")
    assert found["spent_diagnostic"]["epsilon_zcdp"] > epsilon([GAUSS(20.0)], CAP.delta - 1e-7)
    text = to_markdown(found)
    assert "delta_T = 1e-07, taken off the account's delta: keys that one user alone has" in text
    assert "analytic Gaussian (GDP filter), delta 5e-07 kept for thresholds" in text


def test_an_auditor_adds_both_sums_up(url, tmp_path):
    ledger = _account(url)
    run(ledger, "a", "run", COUNTS(20.0, 1e-7))
    with ledger.snapshot() as rows:
        folder = export_ledger(rows, tmp_path / "export")
    (account,) = json.loads((folder / "summary.json").read_text())["accounts"]
    assert account["measure"] == "sum of 1/sigma^2, and sum of the deltas of thresholds"
    assert account["left"][1] == pytest.approx(4e-7)
    assert verify_export(folder).charges == 1


def test_the_command_line_opens_and_shows_the_part(tmp_path):
    url, call = f"sqlite:///{tmp_path}/ledger.db", CliRunner().invoke
    where = ["--ledger", url, "--account", "a"]
    made = call(app, ["ledger", "create", *where, "--epsilon", "3", "--threshold-delta", "5e-7"])
    assert made.exit_code == 0
    assert "composition gdp, threshold_delta 5e-07" in made.output
    with Ledger.open(url) as ledger:
        run(ledger, "a", "run", COUNTS(20.0, 1e-7))
    assert (
        "a: keeps delta 5e-07 for thresholds, of which 1e-07 is taken." in call(app, ["ledger", "show", *where]).output
    )
    assert call(app, ["ledger", "verify", "--ledger", url]).exit_code == 0
    other = [*where[:2], "--account", "b", "--epsilon", "3", "--threshold-delta", "1"]
    assert isinstance(call(app, ["ledger", "create", *other]).exception, ConfigError)


def _thresholded(sigma, delta):
    return {"kind": "thresholded-gaussian", "noise_multiplier": sigma, "delta": delta}


def _book(composition="gdp", kept=KEPT, **more):
    parameters = {"threshold_delta": kept, **SUMS[composition]}
    return Handmade().open("a", composition, parameters=parameters, size=2, **more)


NOISE = {"gdp": gdp_cost(9.0)[0], "zcdp": steps(Fraction(1, 162)), "rdp": steps(Fraction(8, 162))}


@every_sum
def test_an_auditor_refuses_costs_that_are_not_both_sums(composition):
    noise, delta = NOISE[composition], steps(Fraction(1e-7))
    for cost, honest in (
        ([noise, delta], True),
        ([noise, delta - 1], False),
        ([noise, 0], False),
        ([noise, delta + 2], False),
        ([0, delta], False),
    ):
        book = _book(composition)
        book.reserve("a", "run", _thresholded(9.0, 1e-7), cost)
        judge(book, honest, "entry 2 .* cost")
    book = _book(composition)
    book.reserve("a", "run", gaussian(9.0), [noise, 0])
    judge(book, True, "")


@every_sum
def test_an_auditor_refuses_more_deltas_than_the_part(composition):
    for delta, honest in ((KEPT / 2, True), (math.nextafter(KEPT / 2, 1), False)):
        book = _book(composition)
        for number in range(2):
            book.reserve("a", f"run-{number}", _thresholded(9.0, delta), [NOISE[composition], steps(Fraction(delta))])
        judge(book, honest, "entry 3 .* exceeds the cap of account 'a'")


def test_an_auditor_takes_the_part_off_the_delta_of_the_noise():
    least = gaussian_noise(1, less(CAP, 9.9e-7), "gdp")
    for sigma, kept, honest in ((least, 9.9e-7, True), (least, KEPT, True), (least * 0.999, 9.9e-7, False)):
        book = _book(kept=kept)
        book.reserve("a", "run", gaussian(sigma), [gdp_cost(sigma)[0], 0])
        judge(book, honest, "entry 2 .* exceeds the cap")


@pytest.mark.parametrize("kept", [1e-6, 2e-6, 0.0, -1e-7, "5e-7", None, True])
def test_an_auditor_refuses_a_part_that_is_none(kept):
    judge(_book(kept=kept), False, "entry 1 ")


def test_an_auditor_refuses_a_threshold_where_nothing_is_kept():
    for parameters, size in (({}, 1),):
        book = Handmade().open("a", "gdp", parameters=parameters, size=size)
        book.reserve("a", "run", _thresholded(9.0, 1e-9), gdp_cost(9.0))
        judge(book, False, "entry 2 .* does not take")
    for composition, kind in (("pld", "central"), ("metric", "metric-local")):
        more = {"parameters": {"threshold_delta": KEPT}, "kind": kind}
        judge(Handmade().open("a", composition, **more, size=int(composition == "metric")), False, "entry 1 ")


def test_an_auditor_refuses_a_selection_of_thresholds():
    chosen = {"kind": "repeat-and-select", "mean": 9.0, "shape": 1.0, "event": _thresholded(90.0, 1e-9)}
    book = _book("rdp")
    book.reserve("a", "run", chosen, [renyi_cost(1.0, 90.0, 1, 8.0)[0], 0])
    judge(book, False, "entry 2 .* does not take")


def test_an_auditor_prices_a_plan_without_what_its_thresholds_take():
    event, honest = _thresholded(6.0, 4e-7), epsilon([SelfComposedDpEvent(GAUSS(6.0), 2)], CAP.delta - 8e-7, "pld")
    forgotten = epsilon([SelfComposedDpEvent(GAUSS(6.0), 2)], CAP.delta, "pld")
    for stated, fine in ((honest, True), (forgotten, False)):
        book = Handmade().open("p", "pld", size=0)
        book.plan("p", [(event, 2)], stated)
        book.reserve("p", "run", times(2, event), [2])
        judge(book, fine, "entry 2 .* epsilon that is not the plan's")
    book = Handmade().open("p", "pld", size=0)
    book.plan("p", [(_thresholded(600.0, 5e-7), 2)], 0.1)
    judge(book, False, "entry 2 .* all of the account's delta")
    book = Handmade().open("p", "pld", size=0)
    book.plan("p", [(event, 1), (gaussian(6.0), 1)], honest)
    book.reserve("p", "run", _thresholded(6.0, 3e-7), [1, 0])
    judge(book, False, "entry 3 .* cost")


def test_an_output_of_before_is_no_way_around(url):
    """The second release of one question is refused where the event is another, threshold or not."""
    ledger = _account(url)
    run(ledger, "a", "run", GAUSS(20.0))
    refused("is charged for", reserve, ledger, "a", "run", COUNTS(20.0, 1e-7))
    with pytest.raises(LedgerError, match="is charged for"):
        reserve(ledger, "a", "run", COUNTS(20.0, 1e-8))
