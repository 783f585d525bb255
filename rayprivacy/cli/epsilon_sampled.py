"""Calculators of sampled mechanisms: DP-SGD, two stages of it, and the choice of the best of several runs."""

import math
from collections.abc import Callable
from typing import Annotated

import typer
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.accounting import published
from rayprivacy.accounting.calibrate import least_sigma
from rayprivacy.accounting.events import leaves
from rayprivacy.accounting.fields import show
from rayprivacy.accounting.figures import Figures, figures
from rayprivacy.accounting.selection import TrialDistribution, pay_for_all, select_event
from rayprivacy.accounting.units import record_sampling_event
from rayprivacy.cli.epsilon_answer import (
    Answer,
    AsJson,
    AsPublished,
    Sigma,
    WantedEpsilon,
    accounted,
    count,
    headline,
    one_of,
    positive,
    proper_delta,
    share,
)
from rayprivacy.cli.options import Delta
from rayprivacy.core.errors import ConfigError

RELATION = "add-or-remove"
SAMPLED = "each unit is drawn on its own with a probability at every step (Poisson); shuffled batches cost more"
FIXED_PLAN = "a claim for a run fixed in advance"

Q = Annotated[float, typer.Option(help="Probability that a unit is in a step; never derived from the private size.")]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
Records = Annotated[int, typer.Option(help="Public bound on records per user, when records are sampled one by one.")]


def epsilon_dpsgd(
    q: Q,
    steps: Steps,
    sigma: Sigma = None,
    epsilon: WantedEpsilon = None,
    records_per_user: Records = 1,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of DP-SGD from its noise multiplier, or the multiplier from epsilon.

    Example: rayprivacy epsilon dpsgd --q 0.01 --sigma 1 --steps 1000 --delta 1e-5
    """
    given = one_of({"--sigma": sigma}, epsilon)
    make = _run_of(q, steps, records_per_user)
    noise, found = _solve(lambda s: _figures(make(s), delta), sigma, epsilon, delta)
    one_record = PoissonSampledDpEvent(q, GaussianDpEvent(noise))
    unit = "user (or record)" if records_per_user == 1 else f"user with up to {records_per_user} records"
    Answer(
        headline=headline(found.epsilon, delta, None if given else f"sigma = {noise:.6g}"),
        epsilon=found.epsilon,
        delta=delta,
        noise={"sigma": noise},
        accountants=found.by,
        relation=RELATION,
        unit=unit,
        assumptions=(accounted(found.by, RELATION, unit), f"{SAMPLED}; {FIXED_PLAN}", *found.notes),
        published=(published.dpsgd(one_record, steps, delta),) if as_published else (),
    ).show(as_published, as_json)


def epsilon_two_stage(
    q1: Q,
    steps1: Steps,
    q2: Q,
    steps2: Steps,
    sigma1: Sigma = None,
    sigma2: Sigma = None,
    epsilon: WantedEpsilon = None,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of two sampled stages on the same users, or the one multiplier for both from epsilon.

    Example: rayprivacy epsilon two-stage --q1 .02 --sigma1 .9 --steps1 500 --q2 .01 --sigma2 .9 --steps2 1000
    """
    given = one_of({"--sigma1": sigma1, "--sigma2": sigma2}, epsilon)
    first, second = _run_of(q1, steps1, 1, "1"), _run_of(q2, steps2, 1, "2")
    if given:
        noises = positive("--sigma1", sigma1), positive("--sigma2", sigma2)
        found = figures([*leaves(first(noises[0])), *leaves(second(noises[1]))], proper_delta(delta))
    else:
        common, found = _solve(lambda s: figures([*leaves(first(s)), *leaves(second(s))], delta), None, epsilon, delta)
        noises = common, common
    stages = [next(leaves(first(noises[0]))), next(leaves(second(noises[1])))]
    alone = [figures([stage], delta).epsilon for stage in stages]
    Answer(
        headline=headline(found.epsilon, delta, None if given else f"sigma1 = sigma2 = {noises[0]:.6g}"),
        epsilon=found.epsilon,
        delta=delta,
        noise={"sigma1": noises[0], "sigma2": noises[1]},
        accountants=found.by,
        relation=RELATION,
        unit="user",
        assumptions=(
            f"stage 1 alone {alone[0]:.6g}, stage 2 alone {alone[1]:.6g}; both see the same users, so they compose",
            accounted(found.by, RELATION, "user"),
            f"{SAMPLED}; {FIXED_PLAN}",
            *found.notes,
        ),
        published=published.two_stage(stages, delta) if as_published else (),
    ).show(as_published, as_json)


def epsilon_select(
    q: Q,
    steps: Steps,
    trials: Annotated[float, typer.Option(help="Expected number of trials; the number itself is random and secret.")],
    distribution: Annotated[TrialDistribution, typer.Option(help="Of the number of trials.")] = "geometric",
    shape: Annotated[float | None, typer.Option(help="Of negative-binomial only.")] = None,
    sigma: Sigma = None,
    epsilon: WantedEpsilon = None,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of publishing only the best of a secret number of DP-SGD runs, beside paying for every run.

    Example: rayprivacy epsilon select --q 0.01 --sigma 1 --steps 1000 --trials 10 --delta 1e-5
    """
    given = one_of({"--sigma": sigma}, epsilon)
    if not 1 < trials <= 1e5:
        raise ConfigError(f"--trials is {trials}: give an expected number above 1 and at most 1e5.")
    make = _run_of(q, steps, 1)
    noise, found = _solve(
        lambda s: _figures(select_event(make(s), trials, distribution, shape), delta), sigma, epsilon, delta
    )
    one, every = _figures(make(noise), delta), _figures(pay_for_all(make(noise), math.ceil(trials)), delta)
    Answer(
        headline=headline(found.epsilon, delta, None if given else f"sigma = {noise:.6g}"),
        epsilon=found.epsilon,
        delta=delta,
        noise={"sigma": noise},
        accountants=found.by,
        relation=RELATION,
        unit="user (or record)",
        assumptions=(
            f"one run alone {one.epsilon:.6g}; paying for all of {math.ceil(trials)} runs {every.epsilon:.6g}",
            accounted(found.by, RELATION, "user (or record)"),
            f"{SAMPLED}; trials are independent, none is pruned, nothing but the winner leaves, their number included",
        ),
        published=(published.select(one.epsilon),) if as_published else (),
    ).show(as_published, as_json)


def _run_of(q: float, steps: int, records: int, stage: str = "") -> Callable[[float], DpEvent]:
    """A run by its noise multiplier."""
    share(f"--q{stage}", q)
    count(f"--steps{stage}", steps)
    if not 1 <= records <= 999:
        raise ConfigError(f"--records-per-user is {show(records)}: give a whole number from 1 to 999.")
    if q == 1:
        return lambda sigma: SelfComposedDpEvent(GaussianDpEvent(sigma / records), steps)
    return lambda sigma: record_sampling_event(q, sigma, records, steps)


def _figures(event: DpEvent, delta: float) -> Figures:
    return figures(list(leaves(event)), delta)


def _solve(
    cost: Callable[[float], Figures], sigma: float | None, epsilon: float | None, delta: float
) -> tuple[float, Figures]:
    """The multiplier that was given or that epsilon needs, with its figures."""
    proper_delta(delta)
    noise = positive("--sigma", sigma) if epsilon is None else least_sigma(lambda s: cost(s).epsilon, epsilon)
    return noise, cost(noise)
