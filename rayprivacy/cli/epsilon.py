"""Calculators: what noise costs, and what a budget buys. The arithmetic is in `accounting`."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Annotated

import typer
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from rayprivacy.accounting import published
from rayprivacy.accounting.accountant import Figures, figures
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent, delta_left, document_epsilon, leaves, show, token_epsilon
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.published import training_event
from rayprivacy.accounting.schedule import DecayingNoise, NoisePerWorker, NoiseSchedule, ScheduleKind
from rayprivacy.accounting.selection import TrialDistribution, pay_for_all, select_event
from rayprivacy.cli import epsilon_answer as ask
from rayprivacy.cli.epsilon_answer import RELATION, Answer, AsJson, AsPublished, Question, Sigma, WantedEpsilon
from rayprivacy.cli.options import ACCOUNTED, Delta
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget
from rayprivacy.release.step_mechanism import NoisySteps, prefix_error, prefix_strategy
from rayprivacy.release.thresholded import MOST_DELTA, MOST_KEYS, ThresholdedCounts
from rayprivacy.release.votes import SCALE, SIGMA_RANGE

SAMPLED = "each unit is drawn on its own with a probability at every step (Poisson); shuffled batches cost more"
BANDED = (
    "units are hashed into {0} groups, which take turns; a unit is drawn on its own with probability {0} * q in the"
    " steps of its group, and the noise of {0} steps in a row is correlated"
)
MOST_BANDED_STEPS = 100_000  # for which a strategy is found in seconds
FIXED_PLAN = "a claim for a run fixed in advance"
USER_OR_RECORD = "user (or record)"

Q = Annotated[float, typer.Option(help="Probability that a unit is in a step; never derived from the private size.")]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
Records = Annotated[int, typer.Option(help="Public bound on records per user, when records are sampled one by one.")]

app = typer.Typer(no_args_is_help=True, help="Calculators: epsilon from noise, or noise from epsilon.")


@app.command("gaussian")
def epsilon_gaussian(
    count: Annotated[int, typer.Option(help="How many Gaussian releases.")] = 1,
    sigma: Sigma = None,
    epsilon: WantedEpsilon = None,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Epsilon of Gaussian releases from their noise multiplier, or the multiplier from epsilon.

    Example: rayprivacy epsilon gaussian --count 100 --sigma 10
    """
    asked = Question({"--sigma": sigma}, epsilon, delta)
    noise, cost = _gaussian(asked, ask.whole("--count", count))
    Answer(
        headline=asked.headline(cost, noise),
        epsilon=cost,
        delta=delta,
        noise={"sigma": noise},
        accountants={"gdp": cost},
        relation=RELATION,
        unit="what the sensitivity is of",
        assumptions=(f"{count} Gaussian events; {ACCOUNTED}",),
    ).show(False, as_json)


@app.command("seqpate")  # what people ask for by its paper's name: the calculator of its votes
def epsilon_votes(
    queries: Annotated[int, typer.Option(help="Queries answered.")],
    teachers: Annotated[int, typer.Option(help="Number of teachers.")],
    epsilon: Annotated[float | None, typer.Option(help="Wanted epsilon; 3 without --sigma.")] = None,
    sigma: Sigma = None,
    shards_per_phrase: Annotated[
        int | None, typer.Option(help="Protect phrases: public, enforced bound on the shards one may occur in.")
    ] = None,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Noise that a SeqPATE release needs, on the sum and on the mean of the votes, or the epsilon of given noise.

    Example: rayprivacy epsilon seqpate --queries 1000 --teachers 1000 --epsilon 3
    """
    asked = Question({"--sigma": sigma}, 3.0 if sigma is None and epsilon is None else epsilon, delta)
    shards = 1 if shards_per_phrase is None else ask.whole("--shards-per-phrase", shards_per_phrase)
    noise, cost = _gaussian(asked, ask.whole("--queries", queries))
    std = noise * math.sqrt(2) * shards
    on_votes = f"noise std {std:.4g} on the sum, {std / ask.whole('--teachers', teachers):.4g} on the mean"
    first = asked.headline(cost, noise) if asked.epsilon is None else f"sigma = {noise:.6g} per query"
    unit, sensitivity = "user", "sqrt(2)"
    of_users: tuple[str, ...] = ()
    if shards_per_phrase is not None:
        unit, sensitivity = "phrase", f"{shards} * sqrt(2)"
        alone = epsilon_of(math.sqrt(queries) / (noise * shards), delta)
        of_users = (f"a phrase in one shard, and a user (who sits in one shard), has epsilon {alone:.6g}",)
    Answer(
        headline=f"{first}; {on_votes}",
        epsilon=cost,
        delta=delta,
        noise={"sigma": noise, "std_of_sum": std},
        accountants={"gdp": cost},
        relation=RELATION,
        unit=unit,
        assumptions=(
            f"{queries} Gaussian events, L2 sensitivity {sensitivity}, unit {unit}, no subsampling; {ACCOUNTED}",
            *of_users,
        ),
        published=(published.votes_as_published("SeqPATE (2022)", queries, noise, delta),),
    ).show(as_published, as_json)


@app.command("dpsgd")
def epsilon_dpsgd(
    q: Q,
    steps: Steps,
    sigma: Sigma = None,
    epsilon: WantedEpsilon = None,
    records_per_user: Records = 1,
    bands: Annotated[int, typer.Option(help="Steps in a row that share noise, for as many groups of users.")] = 1,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of DP-SGD from its noise multiplier, or the multiplier from epsilon.

    Example: rayprivacy epsilon dpsgd --q 0.01 --sigma 1 --steps 1000 --delta 1e-5
    """
    asked = Question({"--sigma": sigma}, epsilon, delta)
    if as_published and bands != 1:
        raise ConfigError(f"--as-published with --bands {bands}: no formula was published: leave one out.")
    make = _training(q, steps, records_per_user) if bands == 1 else _banded(q, steps, records_per_user, bands)
    (noise,), found = asked.solve(lambda s: _figures(delta, make(s)))
    one_record = PoissonSampledDpEvent(q, GaussianDpEvent(noise))
    # In closed form where noise is independent, for any number of steps.
    error = noise * (math.sqrt((steps + 1) / 2) if bands == 1 else prefix_error(prefix_strategy(bands, steps), steps))
    asked.answer(
        found,
        {"sigma": noise},
        USER_OR_RECORD if records_per_user == 1 else f"user with up to {records_per_user} records",
        f"noise of the sum of all gradients so far, root mean square over the steps: {error:.4g} clipping norms",
        f"{SAMPLED if bands == 1 else BANDED.format(bands)}; {FIXED_PLAN}",
        (published.dpsgd(one_record, steps, delta),) if as_published else (),
    ).show(as_published, as_json)


@app.command("two-stage")
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
    asked = Question({"--sigma1": sigma1, "--sigma2": sigma2}, epsilon, delta)
    makers = (_training(q1, steps1, stage="1"), _training(q2, steps2, stage="2"))
    noises, found = asked.solve(lambda *s: _figures(delta, *(make(each) for make, each in zip(makers, s, strict=True))))
    stages = [next(leaves(make(noise))) for make, noise in zip(makers, noises, strict=True)]
    alone = [figures([stage], delta).epsilon for stage in stages]
    asked.answer(
        found,
        {"sigma1": noises[0], "sigma2": noises[1]},
        "user",
        f"stage 1 alone {alone[0]:.6g}, stage 2 alone {alone[1]:.6g}; both see the same users, so they compose",
        f"{SAMPLED}; {FIXED_PLAN}",
        published.two_stage(stages, delta),
    ).show(as_published, as_json)


@app.command("select")
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
    asked = Question({"--sigma": sigma}, epsilon, delta)
    if not 1 < trials <= 1e5:
        raise ConfigError(f"--trials is {trials}: give an expected number above 1 and at most 1e5.")
    make = _training(q, steps)
    most = math.ceil(trials)
    (noise,), found = asked.solve(lambda s: _figures(delta, select_event(make(s), trials, distribution, shape)))
    one, every = (_figures(delta, event).epsilon for event in (make(noise), pay_for_all(make(noise), most)))
    asked.answer(
        Figures(found.by),  # that PLD has no figure for a choice holds for all of them
        {"sigma": noise},
        USER_OR_RECORD,
        f"one run alone {one:.6g}; paying for all of {most} runs {every:.6g}",
        f"{SAMPLED}; trials are independent, none is pruned, nothing but the winner leaves, their number included",
        (published.select(one),),
    ).show(as_published, as_json)


@app.command("edpsgd")
def epsilon_edpsgd(
    steps: Steps,
    workers: Annotated[int, typer.Option(help="Public number of workers.")],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches per worker, each clipped and noised alone.")] = 1,
    z0: Annotated[float | None, typer.Option(help="Noise multiplier of the first step, as printed.")] = None,
    epsilon: WantedEpsilon = None,
    schedule: Annotated[ScheduleKind, typer.Option(help="How the multiplier falls, by step or by epoch.")] = "constant",
    tau: Annotated[float | None, typer.Option(help="Of a schedule that falls: how fast.")] = None,
    steps_per_epoch: Annotated[int, typer.Option(help="Public; 1 lets the schedule go by step.")] = 1,
    decay: Annotated[
        float, typer.Option(help="Factor from one step's multiplier to the next; short for an exponential schedule.")
    ] = 1.0,
    per_worker: Annotated[NoisePerWorker, typer.Option(help="Noise / N per worker, or noise / sqrt(N).")] = "n",
    max_scale: Annotated[
        float, typer.Option(help="Largest scale of a layer, where noise is added after un-scaling as printed.")
    ] = 1.0,
    q: Annotated[float, typer.Option(help="Probability that a user is in a step (Poisson).")] = 1.0,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of eDP-SGD with a public schedule of noise, or z0 from epsilon.

    N, the logical number of contributions averaged, is workers * micro-batches.

    Example: rayprivacy epsilon edpsgd --z0 8 --schedule linear --tau .1 --steps-per-epoch 50 --steps 100 --workers 4
    """
    asked = Question({"--z0": z0}, epsilon, delta)
    ask.share("--q", q)
    ask.positive("--max-scale", max_scale)
    logical = ask.whole("--workers", workers) * ask.whole("--micro-batches", micro_batches)
    falling = _schedule(schedule, tau, steps_per_epoch, decay)
    noise = DecayingNoise(falling, steps, logical, per_worker, q, max_scale)
    start = noise.least_z0(epsilon, delta) if epsilon is not None else asked.given()[0]
    effective, last = noise.effective(start), noise.levels(start)[-1][0]
    asked.answer(
        noise.figures(start, delta),
        {"z0": start, "effective": effective, "effective_last": last},
        "user (or record) in one micro-batch",
        f"effective multiplier of step 1: z / ({noise.divisor}) = {effective:.6g} with N = {logical}, of the last"
        f" step {last:.6g}; a clipped mean changes by up to 2C",
        "micro-batches are assigned by a keyed hash into N, and scale factors come from public data",
        (published.edpsgd(noise.as_printed(start), delta), published.edpsgd_by_zcdp(noise.printed_rho(start), delta))
        if as_published
        else (),
    ).show(as_published, as_json)


@app.command("santext")
def epsilon_santext(
    tokens: Annotated[int, typer.Option(help="Public bound on the tokens of a document.")],
    diameter: Annotated[float, typer.Option(help="Largest distance in the public vocabulary.")],
    epsilon: Annotated[float | None, typer.Option(help="Epsilon per token and unit of distance.")] = None,
    document_epsilon_wanted: Annotated[
        float | None, typer.Option("--document-epsilon", help="Wanted epsilon of a document, instead.")
    ] = None,
    keep_cost: Annotated[float, typer.Option(help="ln(1/p) of SanText+, for each token.")] = 0.0,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Local epsilon of a document under SanText from its epsilon per token, or back.

    Example: rayprivacy epsilon santext --epsilon 2 --tokens 100 --diameter 1.5
    """
    given = ask.one_of({"--epsilon": epsilon}, document_epsilon_wanted, "--document-epsilon")
    length = ask.whole("--tokens", tokens)
    widest = ask.positive("--diameter", diameter)
    kept = ask.positive("--keep-cost", keep_cost) if keep_cost else 0.0
    if given:
        per_token = ask.positive("--epsilon", epsilon)
    else:
        wanted = ask.positive("--document-epsilon", document_epsilon_wanted) - kept * length
        per_token = token_epsilon(
            ask.positive("--document-epsilon, less what kept words cost,", wanted), widest, length
        )
    cost = document_epsilon(MetricLocalDpEvent(per_token, widest, length, kept))
    solved = f"epsilon = {per_token:.6g} per token and unit of distance for {cost:.6g} per document"
    Answer(
        headline=f"epsilon = {cost:.6g} per document" if given else solved,
        epsilon=cost,
        delta=None,
        noise={"epsilon_per_token": per_token},
        accountants={"metric-local": cost},
        relation="any two documents of the same length",
        unit="document (local model)",
        assumptions=(
            "accountant: tokens * (epsilon * diameter + keep cost), metric local privacy, never added to a central one",
            "vocabulary, embeddings and list of sensitive tokens are public; labels and lengths are not protected",
        ),
        published=(published.santext(per_token),),
    ).show(as_published, as_json)


@app.command("knowledge")
def epsilon_knowledge(
    keys_per_user: Annotated[
        int, typer.Option(help="Public bound on the keys (names, answers) that one user counts for.")
    ],
    support: Annotated[float, typer.Option(help="How many users have a key: a guess.")],
    users: Annotated[float | None, typer.Option(help="About how many users there are: a public guess.")] = None,
    known_answers: Annotated[
        int | None, typer.Option(help="How many answers a question has, where a public list has them all.")
    ] = None,
    releases: Annotated[int, typer.Option(help="Releases of counts, which share the budget alike.")] = 1,
    share_of_delta: Annotated[float, typer.Option(help="Part of delta that the thresholds take together.")] = 0.5,
    sigma: Sigma = None,
    epsilon: WantedEpsilon = None,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Noise and threshold of counts over unknown keys, and which share of keys with some support would be released.

    Example: rayprivacy epsilon knowledge --users 2000 --support 68 --keys-per-user 40 --epsilon 3
    """
    asked = Question({"--sigma": sigma}, epsilon, delta)
    if not 0 < share_of_delta < 1:
        raise ConfigError(f"--share-of-delta is {share_of_delta}: give a number between 0 and 1, e.g. 0.5.")
    if not 1 <= keys_per_user <= MOST_KEYS:
        raise ConfigError(f"--keys-per-user is {show(keys_per_user)}: give a whole number from 1 to {MOST_KEYS}.")
    kept = delta * share_of_delta
    rest = delta_left(delta, Fraction(kept))
    noise, cost = _gaussian(replace(asked, delta=rest), ask.whole("--releases", releases))
    if not SIGMA_RANGE[0] <= noise <= SIGMA_RANGE[1]:
        raise ConfigError(f"--sigma is {noise:g}: give a number from {SIGMA_RANGE[0]:g} to {SIGMA_RANGE[1]:g}.")
    counts = ThresholdedCounts(keys_per_user, noise, min(kept / releases, MOST_DELTA))
    least, std, passing = counts.threshold / SCALE, counts.noise_std_grid / SCALE, counts.passing(support)
    of_users = f" ({least / ask.positive('--users', users):.2%} of {users:g})" if users is not None else ""
    more, less, also = dict[str, float](), "", ""
    if known_answers is not None:
        known = ask.whole("--known-answers", known_answers)
        more = {"cut": counts.cut(known) / SCALE, "passing_known": counts.passing(support, known)}
        less = f", one of {known} known {math.ceil(more['cut'])}"
        also = f", and of known answers, above {more['cut']:.4g}, {more['passing_known']:.2%}"
    Answer(
        headline=f"{asked.headline(cost, noise)}; a key needs about {math.ceil(least)} users{of_users}{less}",
        epsilon=cost,
        delta=delta,
        noise={"sigma": noise, "std": std, "threshold": least, "passing": passing, **more},
        accountants={"gdp": cost},
        relation=RELATION,
        unit="user",
        assumptions=(
            f"of keys that {ask.positive('--support', support):g} users have, {passing:.2%} would be released:"
            f" noise std {std:.4g} on each count, threshold {least:.4g}{also}",
            f"{releases} Gaussian events with a threshold, L2 sensitivity sqrt({keys_per_user}); {ACCOUNTED}",
            f"delta {kept:g} is kept for thresholds (`ledger create --threshold-delta`): {rest:g} is left for noise",
        ),
    ).show(False, as_json)


def _gaussian(asked: Question, count: int) -> tuple[float, float]:
    """Noise multiplier and epsilon, from either."""
    if asked.epsilon is not None:
        return sigma_for(count, Budget(asked.epsilon, asked.delta)), asked.epsilon
    (sigma,) = asked.given()
    return sigma, epsilon_of(math.sqrt(count) / sigma, asked.delta)


def _schedule(kind: ScheduleKind, tau: float | None, steps_per_epoch: int, decay: float) -> NoiseSchedule:
    """The schedule that the options name, of which `--decay` is short for one."""
    ask.whole("--steps-per-epoch", steps_per_epoch)
    if not 0 < decay <= 1:
        raise ConfigError(f"--decay is {decay}: give a factor above 0 and at most 1.")
    if decay < 1 and (kind != "constant" or tau is not None or steps_per_epoch > 1):
        raise ConfigError(f"--decay is {decay:g} beside --schedule, --tau or --steps-per-epoch: give one or the other.")
    if decay < 1:
        return NoiseSchedule("exponential", -math.log(decay))
    if (tau is None) != (kind == "constant"):
        raise ConfigError(f"--tau is {tau} with --schedule {kind}: give it to a schedule that falls, and to no other.")
    return NoiseSchedule(kind, 0.0 if tau is None else ask.positive("--tau", tau), steps_per_epoch)


def _training(q: float, steps: int, records: int = 1, stage: str = "") -> Callable[[float], DpEvent]:
    """A run by its noise multiplier; `stage` ends the names of its options."""
    ask.share(f"--q{stage}", q)
    ask.whole(f"--steps{stage}", steps)
    if not 1 <= records <= 999:
        raise ConfigError(f"--records-per-user is {show(records)}: give a whole number from 1 to 999.")
    return lambda sigma: training_event(q, sigma, records, steps)


def _banded(q: float, steps: int, records: int, bands: int) -> Callable[[float], DpEvent]:
    """A run with banded noise by its noise multiplier."""
    ask.share("--q", q)
    if ask.whole("--steps", steps) % ask.whole("--bands", bands):
        raise ConfigError(f"--bands is {bands} and --steps {steps}: give a multiple of the bands.")
    if steps > MOST_BANDED_STEPS:
        raise ConfigError(f"--steps is {steps} with --bands: give at most {MOST_BANDED_STEPS}.")
    if bands * q > 1:
        raise ConfigError(f"--bands is {bands} and --q {q:g}: let their product be at most 1.")
    if records != 1:
        raise ConfigError(f"--records-per-user is {show(records)} with --bands: only whole users fall into groups.")
    return lambda sigma: NoisySteps(bands * q, sigma, 1.0, steps, bands=bands).event


def _figures(delta: float, *events: DpEvent) -> Figures:
    return figures([leaf for event in events for leaf in leaves(event)], delta)
