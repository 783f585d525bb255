"""Calculators: what noise costs, and what a budget buys."""

import math
from typing import Annotated

import typer

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.cli.options import ACCOUNTED, Delta
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget

app = typer.Typer(no_args_is_help=True, help="Calculators: epsilon from noise, or noise from epsilon.")


@app.command("gaussian")
def epsilon_gaussian(
    count: Annotated[int, typer.Option(help="How many Gaussian releases.")] = 1,
    sigma: Annotated[float | None, typer.Option(help="Noise std / L2 sensitivity.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Wanted epsilon, instead of sigma.")] = None,
    delta: Delta = 1e-6,
) -> None:
    """Epsilon of Gaussian releases from their noise multiplier, or the multiplier from epsilon.

    Example: rayprivacy epsilon gaussian --count 100 --sigma 10
    """
    if (sigma is None) == (epsilon is None):
        raise ConfigError("give either --sigma or --epsilon, and not both.")
    if epsilon is not None:
        typer.echo(f"sigma = {sigma_for(count, Budget(epsilon, delta)):.6g} for epsilon {epsilon:g}, delta {delta:g}")
    elif sigma is not None and sigma > 0 and count > 0 and math.isfinite(sigma) and 0 < delta < 1:
        typer.echo(f"epsilon = {epsilon_of(math.sqrt(count) / sigma, delta):.6g} at delta {delta:g}")
    else:
        raise ConfigError(f"--sigma is {sigma}, --count {count}, --delta {delta}: all must be positive, delta below 1.")
    typer.echo(f"{count} Gaussian events; {ACCOUNTED}")


@app.command("seqpate")
def epsilon_seqpate(
    queries: Annotated[int, typer.Option(help="Queries answered.")],
    teachers: Annotated[int, typer.Option(help="Number of teachers.")],
    epsilon: Annotated[float, typer.Option(help="Wanted epsilon.")] = 3.0,
    delta: Delta = 1e-6,
) -> None:
    """Noise that a SeqPATE release needs, on the sum and on the mean of the votes.

    Example: rayprivacy epsilon seqpate --queries 1000 --teachers 1000 --epsilon 3
    """
    if teachers < 1:
        raise ConfigError(f"--teachers is {teachers}: give at least 1.")
    sigma = sigma_for(queries, Budget(epsilon, delta))
    noise = sigma * math.sqrt(2)
    typer.echo(f"sigma = {sigma:.6g} per query; noise std {noise:.4g} on the sum, {noise / teachers:.4g} on the mean")
    typer.echo(f"{queries} Gaussian events, L2 sensitivity sqrt(2), unit user, no subsampling; {ACCOUNTED}")
