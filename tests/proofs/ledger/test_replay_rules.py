"""Whoever rewrites a book with consistent hashes must still follow the rules: costs, caps, plans, states, exposures."""

import json
import math
import re
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from handmade import (
    Handmade,
    gaussian,
    gdp_cost,
    judge,
    laplace,
    refuse_next,
    renyi_cost,
    replay,
    sampled,
    steps,
    times,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.audit.prices import flatten, renyi_at
from rayprivacy.ledger.audit.rules import shares_out

RDP = ("rdp", 3.0, "central", "", {"order": 8.0})


RDP = ("rdp", 3.0, "central", "", {"order": 8.0})
METRIC = ("metric", 30.0, "metric-local", "", {"protected": ""})
WORDS = {"kind": "metric-local", "epsilon": 0.5, "diameter": 2.0, "tokens": 3}


@pytest.mark.parametrize(
    ("terms", "event", "price"),
    [
        (("gdp",), gaussian(5.0), gdp_cost(5.0)[0]),
        (("gdp",), times(20, gaussian(30.0)), gdp_cost(*[30.0] * 20)[0]),
        (("zcdp",), gaussian(5.0), steps(1 / 50)),
        (("zcdp",), laplace(5.0), steps(1 / 50)),
        (RDP, gaussian(5.0), steps(8 / 50)),
        (RDP, sampled(1.0, 5.0), steps(8 / 50)),
        (RDP, sampled(0.02, 1.5), renyi_cost(0.02, 1.5, 1, 8.0)[0]),
        (("rdp", 3.0, "central", "", {"order": 7.3}), sampled(0.02, 1.5), renyi_cost(0.02, 1.5, 1, 7.3)[0]),
        (METRIC, WORDS, 3 * 2**80),
    ],
)
def test_costs_must_be_what_the_event_costs_up_to_the_cap(terms, event, price):
    for factor, honest in ((1.0, True), (1 - 1e-6, False), (1 + 1e-5, False), (0.0, False)):
        book = Handmade().open("a", *terms)
        book.reserve("a", "run", event, [int(price * factor) if factor != 1 else price])
        judge(book, honest, "entry 2 .* cost")
    if event["kind"] == "poisson-sampled-gaussian":
        return  # thousands of them fit
    book = Handmade().open("a", *terms)
    for number in range(100):
        book.lease("start", book.reserve("a", f"run-{number}", event, [price]))
    with pytest.raises(LedgerError, match="exceeds the cap of account 'a'") as caught:
        replay(book.rows)
    (entry,) = re.findall(r"entry (\d+) of the ledger", str(caught.value))
    assert int(entry) > 11, "the cap holds too early"
    book.entries = book.entries[: int(entry) - 1]
    replay(book.rows)


def test_the_winner_of_a_selection_has_a_cost_between_its_bounds():
    # r(b) = b/200 and a geometric number of trials of mean 10, at order 8. The best order of all costs 0.639 (22 and 21
    # in the formula), order 8 alone costs 1.015.
    event = {"kind": "repeat-and-select", "mean": 10.0, "shape": 1.0, "event": gaussian(10.0)}
    for amount, honest in ((0.638, False), (0.64, True), (1.014, True), (1.016, False)):
        book = Handmade().open("a", "rdp", 50.0, parameters={"order": 8.0})
        book.reserve("a", "run", event, [steps(amount)])
        judge(book, honest, "entry 2 .* cost")


@pytest.mark.parametrize(
    ("q", "sigma", "order"), [(0.01, 1.0, 8.0), (0.2, 2.0, 3.0), (0.05, 0.7, 2.5), (1e-4, 3.0, 9.0)]
)
def test_the_price_of_a_sampled_gaussian_is_its_renyi_divergence(q, sigma, order):
    def excess(x):  # of E[ratio^order] above 1, so that a small cost keeps its digits
        ratio = q * math.expm1((2 * x - 1) / (2 * sigma**2))
        density = math.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        return density * (math.expm1(order * math.log1p(ratio)) - order * ratio)

    integral, _ = quad(excess, -12 * sigma, order + 14 * sigma, epsabs=0, epsrel=1e-12, limit=500)
    found = renyi_at(flatten(sampled(q, sigma), "")[0][0], order)
    assert found is not None
    truth = math.log1p(integral) / (order - 1)
    above = 1e-8 if order.is_integer() else 0.02  # the library's series is an upper bound
    assert truth * (1 - 1e-8) <= found[0] <= truth * (1 + above)


def test_a_cancelled_charge_gives_its_cost_back():
    book = Handmade().open("a")
    for number in range(50):
        book.step("cancel", book.reserve("a", "run", gaussian(1.6), gdp_cost(1.6), name=f"charge {number}"))
    book.reserve("a", "run", gaussian(1.6), gdp_cost(1.6))
    assert replay(book.rows).charges == 51


PLANNED = [(sampled(0.01, 1.0), 200), (gaussian(20.0), 10), (laplace(50.0), 2)]


def planned(*lines, epsilon=1.29082):
    book = Handmade().open("p", "pld", size=0)
    book.plan("p", list(lines), epsilon)
    return book


BOTH = {"kind": "composed", "events": [gaussian(25.0), sampled(0.002, 25.0)]}


@pytest.mark.parametrize(
    ("event", "cost", "honest"),
    [
        (times(200, sampled(0.01, 1.0)), [200, 0, 0], True),
        (times(201, sampled(0.01, 1.0)), [201, 0, 0], False),  # more than planned
        (times(200, sampled(0.01, 1.0)), [199, 0, 0], False),  # less than it takes
        (times(200, sampled(0.01, 1.0)), [190, 10, 0], False),  # the plain line has more noise than this
        (sampled(0.01, 0.999), [1, 0, 0], False),
        (sampled(0.0101, 1.0), [1, 0, 0], False),
        (gaussian(19.9), [0, 1, 0], False),
        (sampled(0.5, 20.0), [0, 1, 0], True),
        (laplace(49.0), [0, 0, 1], False),
        (laplace(50.0), [0, 0, 3], False),
        (laplace(50.0), [0, 1, 0], False),
        (BOTH, [1, 1, 0], True),
        (BOTH, [2, 0, 0], False),
        ({"kind": "non-private"}, [1, 0, 0], False),
        (gaussian(25.0), [0, 1], False),
    ],
)
def test_plan_lines_pay_for_what_they_cover(event, cost, honest):
    book = planned(*PLANNED)
    try:
        book.reserve("p", "run", event, cost)
    except ValueError:  # a cost of another length has no honest balance
        book.entry("reserve", "p", release_id="run", charge="c", events=json.dumps(event), cost=json.dumps(cost))
    judge(book, honest, "entry 3")


@pytest.mark.parametrize(
    ("line", "epsilon", "message"),
    [
        ([(sampled(0.01, 1.0), 200000)], 2.9, "exceeds the cap|privacy loss"),
        ([(sampled(0.01, 1.0), 200)], 0.1, "not the plan's"),
        ([(sampled(0.01, 0.01), 1)], 2.9, "no privacy loss distribution"),
        ([({"kind": "non-private"}, 1)], 2.9, "no privacy loss distribution"),
        ([(times(2, gaussian(30.0)), 1)], 0.2, "not one basic mechanism"),
        ([(gaussian(30.0), 0)], 0.2, "whole number"),
        ([], 0.2, "as many counts"),
    ],
)
def test_a_plan_must_fit_the_cap(line, epsilon, message):
    refuse_next(planned(*line, epsilon=epsilon), f"entry 2 .*({message})")


@pytest.mark.parametrize("given_back", [False, True])
def test_no_plan_comes_after_a_charge(given_back):
    book = planned(*PLANNED)
    charge = book.reserve("p", "run", gaussian(20.0), [0, 1, 0])
    if given_back:
        book.step("cancel", charge)
    book.plan("p", PLANNED, 1.29082)
    refuse_next(book, f"entry {4 + given_back} .* plan")


def test_the_last_plan_before_a_charge_holds():
    book = planned(*PLANNED)
    book.plan("p", [(gaussian(15.0), 10)], 0.883)
    book.reserve("p", "run", gaussian(15.0), [1])
    assert replay(book.rows).charges == 1
    book.reserve("p", "other", laplace(50.0), [1])
    refuse_next(book, "entry 5 .*cost")


LINES = st.lists(
    st.tuples(st.sampled_from([0.1, 0.2, 0.5, 1.0]), st.sampled_from([1.0, 2.0, 3.0, 5.0]), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


@given(LINES, LINES)
def test_sharing_out_agrees_with_a_search_for_a_matching(leaves, lines):
    runs = [(q, sigma) for q, sigma, count in leaves for _ in range(count)]
    units = [(q, sigma) for q, sigma, count in lines for _ in range(count)]
    owner: dict[int, int] = {}

    def place(run, seen):
        for unit, (q, sigma) in enumerate(units):
            if unit not in seen and q >= runs[run][0] and sigma <= runs[run][1]:
                seen.add(unit)
                if unit not in owner or place(owner[unit], seen):
                    owner[unit] = run
                    return True
        return False

    expected = len(runs) == len(units) and all(place(run, set()) for run in range(len(runs)))
    as_leaves = [[(flatten(sampled(q, sigma), "")[0][0], n) for q, sigma, n in side] for side in (leaves, lines)]
    assert shares_out(*as_leaves) == expected


def test_a_mixture_is_paid_by_its_own_line():
    parts, probabilities = [0.0, 1.0, 2.0], [0.9, 0.05, 0.05]
    mixture = {"kind": "mixture-of-gaussians", "standard_deviation": 20.0}
    mixture |= {"sensitivities": [0.0, 1.0, 2], "sampling_probs": probabilities}
    accountant = PLDAccountant()
    one = dp_event.MixtureOfGaussiansDpEvent(20.0, parts, probabilities)
    accountant.compose(dp_event.SelfComposedDpEvent(one, 100)).compose(dp_event.GaussianDpEvent(20.0), 10)
    for cost, honest in (([7, 0], True), ([6, 0], False), ([6, 1], False)):
        book = planned((mixture, 100), (gaussian(20.0), 10), epsilon=float(accountant.get_epsilon(1e-6)))
        book.reserve("p", "run", times(7, mixture), cost)
        judge(book, honest, "entry 3 .* cost")


def test_what_other_readers_might_read_otherwise_is_refused():
    for column, old, new in (
        ("cost", "]", ".0]"),
        ("balance", '"started": [0]', '"started": [false]'),
        ("balance", '"started": [0]', '"started": [0.0]'),
        ("balance", '"started": [0]', '"started": [7], "started": [0]'),
        ("events", '"kind"', '"kind": "laplace", "kind"'),
    ):
        book = Handmade().open("a")
        book.reserve("a", "run", gaussian(5.0), gdp_cost(5.0))
        replay(book.rows)
        book.entries[-1][column] = book.entries[-1][column].replace(old, new)
        refuse_next(book, f"entry 2 .* {column}")


# Books as steps of `Handmade`: the auditor accepts those without a message.
FIVE, SIX, FORTY = ((gaussian(sigma), gdp_cost(sigma)) for sigma in (5.0, 6.0, 40.0))
OPEN, RUN, SELECTED = ("open", "a"), "a/run/0", "s/run/0"
STARTED = (OPEN, ("reserve", "a", "run", *FIVE), ("lease", "start", RUN))
FIRST, UNPLANNED = ("reserve", "a", "run", *FORTY, 1), ("open", "p", "pld", 3.0, "central", "", {}, 0)
POLICY = ("open", "s", "gdp", 3.0, "selective", "mail", {"policy": "names"})
LATE = ("open", "late", "gdp", 3.0, "central", "mail")
CORPUS = ((*LATE[:1], "c1", *LATE[2:]), (*LATE[:1], "c2", *LATE[2:]), (*LATE[:1], "news", *LATE[2:5], "news"), POLICY)
SELECT, PAID = ("reserve", "s", "run", *SIX), ("reserve", "c1", "run", *SIX)
C1, C2, NEWS, LATER = (("expose", name, "s", "selective", "run") for name in ("c1", "c2", "news", "late"))
BOOKS: list[tuple[str, list[Any]]] = [
    ("entry 4 .* token", [*STARTED, ("lease", "takeover", RUN, 1, "you")]),
    ("entry 4 .* token", [*STARTED, ("lease", "takeover", RUN, 3, "you")]),
    ("entry 4 .* token", [*STARTED, ("lease", "renew", RUN, 2, "me")]),
    ("entry 4 .* token", [*STARTED, ("lease", "renew", RUN, 1, "x")]),
    ("entry 5 .* token that was taken over", [*STARTED, ("lease", "takeover", RUN, 2, "you"), ("commit", RUN, 1)]),
    *(("entry 4", [*STARTED, ("step", kind, RUN)]) for kind in ("start", "cancel")),
    *(
        (f"entry 5 .* cannot {kind}", [*STARTED, ("commit", RUN), ("step", kind, RUN)])
        for kind in ("start", "renew", "takeover", "commit", "cancel")
    ),
    ("entry 4", [*STARTED, ("reserve", "a", "other", *FIVE, 0, RUN)]),
    ("entry 4 .* charges one release and input twice", [*STARTED, ("reserve", "a", "run", *FIVE, 0, "again")]),
    (
        "entry 3 .* rung 3 of a release whose rung 2",
        [OPEN, *(("reserve", "a", "run", *FORTY, rung) for rung in (1, 3))],
    ),
    ("entry 4 .* whose rung 1", [OPEN, FIRST, ("step", "cancel", "a/run/1"), ("reserve", "a", "run", *FORTY, 2)]),
    # An exposure is recorded in every central account of the corpus, before the charge goes on.
    ("the end .*c1", [*CORPUS, SELECT]),
    ("the end .*c1", [*CORPUS, SELECT, C2]),
    ("", [*CORPUS, SELECT, C2, C1]),
    ("", [*CORPUS, SELECT, C2, C1, ("step", "cancel", SELECTED), LATE]),  # nothing ran: nothing to record
    ("entry 7 .* is due", [*CORPUS, SELECT, C1, ("lease", "start", SELECTED), C2]),
    # A rung that a central account pays for exposes nobody; not one that may be cancelled, or of another corpus.
    ("", [*CORPUS, ("release", *PAID[1:]), SELECT, LATE]),
    ("no charge calls for", [*CORPUS, ("release", *PAID[1:]), SELECT, LATE, C2]),
    ("the end .* is due", [*CORPUS, PAID, SELECT]),
    ("the end .* is due", [*CORPUS, ("reserve", "news", "run", *SIX), ("lease", "start", "news/run/0"), SELECT]),
    # An exposure that nothing calls for.
    ("entry 6 .* no charge calls for", [*CORPUS, SELECT, NEWS]),
    ("entry 6 .* no charge calls for", [*CORPUS, SELECT, ("expose", "c1", "s", "metric-local", "run")]),
    ("entry 6 .* no charge calls for", [*CORPUS, SELECT, ("expose", "c1", "s", "selective", "other")]),
    # An account that is opened later records what came first, and once.
    ("the end .* due", [POLICY, SELECT, LATE]),
    ("", [POLICY, SELECT, LATE, LATER]),
    ("entry 5 .* no charge calls for", [POLICY, SELECT, LATE, LATER, LATER]),
    (
        "entry 2 .* not registered yet",
        [UNPLANNED, ("reserve", "p", "r", FIVE[0], [])],
    ),
    ("entry 2 .* cannot take", [OPEN, ("plan", "a", PLANNED, 1.29082)]),
]


@pytest.mark.parametrize(("message", "steps_of"), BOOKS)
def test_states_rungs_and_exposures_follow_the_rules(message, steps_of):
    book = Handmade()
    for name, *values in steps_of:
        getattr(book, name)(*values)
    judge(book, not message, message)
