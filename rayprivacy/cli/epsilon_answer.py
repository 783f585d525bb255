"""What every calculator prints: a figure, who accounted for it, for whom it holds, and what it takes for granted."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from rayprivacy.accounting.fields import MAX_COUNT, SIGMA_RANGE, show
from rayprivacy.accounting.figures import Figures
from rayprivacy.accounting.published import Published
from rayprivacy.core.errors import ConfigError

MEANINGLESS = 50.0
RELATION = "add-or-remove"
AsPublished = Annotated[bool, typer.Option("--as-published", help="Also print the paper's own figure, labelled so.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Sigma = Annotated[float | None, typer.Option(help="Noise std / L2 sensitivity.")]
WantedEpsilon = Annotated[float | None, typer.Option(help="Wanted epsilon, instead of noise.")]


@dataclass(frozen=True)
class Answer:
    """One calculation.

    Attributes:
        headline: the first line, e.g. "epsilon = 1.83 at delta 1e-05".
        epsilon: what is guaranteed, the lesser of the accountants' figures.
        delta: of the guarantee; None for a pure one.
        noise: the noise by the names of the options.
        accountants: epsilon by the accountants' names.
        relation: of neighbouring corpora.
        unit: whose presence is hidden.
        assumptions: one clause each.
        published: figures of the paper.
    """

    headline: str
    epsilon: float
    delta: float | None
    noise: Mapping[str, float]
    accountants: Mapping[str, float]
    relation: str
    unit: str
    assumptions: tuple[str, ...] = ()
    published: tuple[Published, ...] = field(default=())

    def show(self, as_published: bool = False, as_json: bool = False) -> None:
        """Print the answer; the paper's figures only when asked for."""
        published = self.published if as_published else ()
        if as_json:
            typer.echo(json.dumps(self._plain(published), allow_nan=False))
            return
        typer.echo(self.headline)
        for line in [*self.assumptions, *(f"{p.label}: {_figure(p.epsilon)}" for p in published)]:
            typer.echo(line)
        if self.epsilon > MEANINGLESS:
            typer.echo(f"epsilon is above {MEANINGLESS:g}: no meaningful guarantee")

    def _plain(self, published: tuple[Published, ...]) -> dict[str, Any]:
        plain = {**asdict(self), "noise": dict(self.noise), "accountants": dict(self.accountants)}
        plain["published"] = [asdict(figure) for figure in published]
        plain["meaningful"] = self.epsilon <= MEANINGLESS
        return {key: _finite(value) for key, value in plain.items()}


def answer_of(
    found: Figures,
    delta: float,
    noise: Mapping[str, float],
    *,
    solved: str | None,
    unit: str,
    before: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    published: tuple[Published, ...] = (),
) -> Answer:
    """The answer whose epsilon is the least of several accountants' figures.

    Args:
        found: the figures.
        delta: of the guarantee.
        noise: the noise by the names of the options.
        solved: the noise that was solved for, in words; None if it was given.
        unit: whose presence is hidden.
        before, after: assumptions before and after the line of the accountants.
        published: figures of the paper.
    """
    each = ", ".join(f"{name} {_figure(value)}" for name, value in found.by.items())
    accounted = f"accountants: {each}; relation: {RELATION}; unit: {unit}"
    return Answer(
        headline=headline(found.epsilon, delta, solved),
        epsilon=found.epsilon,
        delta=delta,
        noise=noise,
        accountants=found.by,
        relation=RELATION,
        unit=unit,
        assumptions=(*before, accounted, *after, *found.notes),
        published=published,
    )


def headline(epsilon: float, delta: float, solved: str | None) -> str:
    """The first line: epsilon from noise, or the noise that was solved for."""
    if solved is None:
        return f"epsilon = {_figure(epsilon)} at delta {delta:g}"
    return f"{solved} for epsilon {_figure(epsilon)}, delta {delta:g}"


def one_of(noise: Mapping[str, float | None], epsilon: float | None, option: str = "--epsilon") -> bool:
    """Whether noise was given (and not epsilon, by the option of that name).

    Raises:
        ConfigError: both were given, or neither.
    """
    given = [value is not None for value in noise.values()]
    if any(given) == (epsilon is not None) or any(given) != all(given):
        raise ConfigError(f"give either {' and '.join(noise)} or {option}, and not both.")
    return any(given)


def positive(option: str, value: float | None) -> float:
    """A finite number above 0.

    Raises:
        ConfigError: it is not.
    """
    if value is None or not SIGMA_RANGE[0] <= value <= SIGMA_RANGE[1]:
        raise ConfigError(f"{option} is {value}: give a positive finite number.")
    return value


def whole(option: str, value: int) -> int:
    """A whole number from 1 to 2**53.

    Raises:
        ConfigError: it is not.
    """
    if not 1 <= value <= MAX_COUNT:
        raise ConfigError(f"{option} is {show(value)}: give a whole number from 1 to 2**53.")
    return value


def share(option: str, value: float) -> float:
    """A probability above 0.

    Raises:
        ConfigError: it is not.
    """
    if not 0 < value <= 1:
        raise ConfigError(f"{option} is {value}: give a probability above 0 and at most 1.")
    return value


def proper_delta(value: float) -> float:
    """A delta.

    Raises:
        ConfigError: it is not inside (0, 1).
    """
    if not 0 < value < 1:
        raise ConfigError(f"--delta is {value}: give a number between 0 and 1, e.g. 1e-6.")
    return value


def _figure(value: float) -> str:
    return f"{value:.6g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
