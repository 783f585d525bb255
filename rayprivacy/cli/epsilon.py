"""Calculators: what noise costs, and what a budget buys. Gaussian releases here, the rest in `epsilon_*`."""

import math
from typing import Annotated

import typer

from rayprivacy.accounting import published
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.cli.epsilon_answer import (
    Answer,
    AsJson,
    AsPublished,
    Sigma,
    WantedEpsilon,
    headline,
    one_of,
    positive,
    proper_delta,
)
from rayprivacy.cli.epsilon_answer import (
    count as whole,
)
from rayprivacy.cli.epsilon_methods import epsilon_edpsgd, epsilon_santext
from rayprivacy.cli.epsilon_sampled import epsilon_dpsgd, epsilon_select, epsilon_two_stage
from rayprivacy.cli.options import ACCOUNTED, Delta
from rayprivacy.core.units import Budget

app = typer.Typer(no_args_is_help=True, help="Calculators: epsilon from noise, or noise from epsilon.")
RELATION = "add-or-remove"


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
    given = one_of({"--sigma": sigma}, epsilon)
    noise, cost = _gaussian(whole("--count", count), sigma, epsilon, delta)
    Answer(
        headline=headline(cost, delta, None if given else f"sigma = {noise:.6g}"),
        epsilon=cost,
        delta=delta,
        noise={"sigma": noise},
        accountants={"gdp": cost},
        relation=RELATION,
        unit="what the sensitivity is of",
        assumptions=(f"{count} Gaussian events; {ACCOUNTED}",),
    ).show(as_json=as_json)


@app.command("seqpate")
def epsilon_seqpate(
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
    if sigma is None and epsilon is None:
        epsilon = 3.0
    given = one_of({"--sigma": sigma}, epsilon)
    shards = 1 if shards_per_phrase is None else whole("--shards-per-phrase", shards_per_phrase)
    noise, cost = _gaussian(whole("--queries", queries), sigma, epsilon, delta)
    std = noise * math.sqrt(2) * shards
    on_votes = f"noise std {std:.4g} on the sum, {std / whole('--teachers', teachers):.4g} on the mean"
    first = f"{headline(cost, delta, None)}; {on_votes}" if given else f"sigma = {noise:.6g} per query; {on_votes}"
    unit = "user" if shards_per_phrase is None else "phrase"
    sensitivity = "sqrt(2)" if shards_per_phrase is None else f"{shards} * sqrt(2)"
    Answer(
        headline=first,
        epsilon=cost,
        delta=delta,
        noise={"sigma": noise, "std_of_sum": std},
        accountants={"gdp": cost},
        relation=RELATION,
        unit=unit,
        assumptions=(
            f"{queries} Gaussian events, L2 sensitivity {sensitivity}, unit {unit}, no subsampling; {ACCOUNTED}",
            *_per_user(shards_per_phrase, queries, noise, delta),
        ),
        published=(published.seqpate(queries, noise, delta),),
    ).show(as_published, as_json)


def _gaussian(count: int, sigma: float | None, epsilon: float | None, delta: float) -> tuple[float, float]:
    """Noise multiplier and epsilon, from either."""
    proper_delta(delta)
    if epsilon is not None:
        return sigma_for(count, Budget(epsilon, delta)), epsilon
    sigma = positive("--sigma", sigma)
    return sigma, epsilon_of(math.sqrt(count) / sigma, delta)


def _per_user(shards: int | None, queries: int, sigma: float, delta: float) -> tuple[str, ...]:
    if shards is None:
        return ()
    alone = epsilon_of(math.sqrt(queries) / (sigma * shards), delta)
    return (f"a phrase in one shard, and a user (who sits in one shard), has epsilon {alone:.6g}",)


app.command("dpsgd")(epsilon_dpsgd)
app.command("two-stage")(epsilon_two_stage)
app.command("select")(epsilon_select)
app.command("edpsgd")(epsilon_edpsgd)
app.command("santext")(epsilon_santext)
