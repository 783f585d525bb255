"""What calculators ask and answer: a figure, who accounted for it, for whom it holds, and what it takes for granted."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from rayprivacy.accounting.accountant import Figures
from rayprivacy.accounting.calibrate import least_sigma_near
from rayprivacy.accounting.events import MAX_COUNT, SIGMA_RANGE, show
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
    """One calculation; `epsilon` is the least of the accountants' figures, and `delta` is None for a pure guarantee."""

    headline: str
    epsilon: float
    delta: float | None
    noise: Mapping[str, float]
    accountants: Mapping[str, float]
    relation: str
    unit: str
    assumptions: Sequence[str]
    published: Sequence[Published] = ()

    def show(self, as_published: bool, as_json: bool) -> None:
        """Print the answer; the paper's figures only when asked for."""
        published = self.published if as_published else ()
        if as_json:
            plain = {**asdict(self), "published": [asdict(figure) for figure in published]}
            plain["meaningful"] = self.epsilon <= MEANINGLESS
            typer.echo(json.dumps(_finite(plain), allow_nan=False))
            return
        lines = [self.headline, *self.assumptions, *(f"{p.label}: {_figure(p.epsilon)}" for p in published)]
        if self.epsilon > MEANINGLESS:
            lines.append(f"epsilon is above {MEANINGLESS:g}: no meaningful guarantee")
        typer.echo("\n".join(lines))


@dataclass(frozen=True)
class Question:
    """Noise, by the names of its options, or the epsilon that it is to cost: one of the two is given."""

    noise: Mapping[str, float | None]
    epsilon: float | None
    delta: float

    def __post_init__(self) -> None:
        one_of(self.noise, self.epsilon)
        if not 0 < self.delta < 1:
            raise ConfigError(f"--delta is {self.delta}: give a number between 0 and 1, e.g. 1e-6.")

    def given(self) -> list[float]:
        """The noise, where it was given."""
        return [positive(option, value) for option, value in self.noise.items()]

    def solve(self, cost: Callable[..., Figures]) -> tuple[list[float], Figures]:
        """The noise, given or solved for (then the same for all options), with its figures; `cost` takes all noise."""
        if self.epsilon is None:
            found = self.given()
        else:
            alike = len(self.noise)
            least = least_sigma_near(lambda s: cost(*[s] * alike).epsilon, self.epsilon, guess=lambda s: 1 / s)
            found = [least] * alike
        return found, cost(*found)

    def headline(self, epsilon: float, noise: float) -> str:
        """The first line: epsilon from noise, or the noise that was solved for."""
        if self.epsilon is None:
            return f"epsilon = {_figure(epsilon)} at delta {self.delta:g}"
        names = " = ".join(option.removeprefix("--") for option in self.noise)
        return f"{names} = {noise:.6g} for epsilon {_figure(epsilon)}, delta {self.delta:g}"

    def answer(
        self,
        found: Figures,
        noise: Mapping[str, float],
        unit: str,
        before: str,
        after: str,
        published: Sequence[Published] = (),
    ) -> Answer:
        """The answer by several accountants, whose line stands between two clauses of what is assumed."""
        each = ", ".join(f"{name} {_figure(value)}" for name, value in found.by.items())
        accounted = f"accountants: {each}; relation: {RELATION}; unit: {unit}"
        return Answer(
            headline=self.headline(found.epsilon, next(iter(noise.values()))),
            epsilon=found.epsilon,
            delta=self.delta,
            noise=noise,
            accountants=found.by,
            relation=RELATION,
            unit=unit,
            assumptions=(before, accounted, after, *found.notes),
            published=published,
        )


def one_of(noise: Mapping[str, float | None], epsilon: float | None, option: str = "--epsilon") -> bool:
    """Whether noise was given, and not epsilon, by the option of that name; refuses both, and neither."""
    given = [value is not None for value in noise.values()]
    if any(given) == (epsilon is not None) or any(given) != all(given):
        raise ConfigError(f"give either {' and '.join(noise)} or {option}, and not both.")
    return any(given)


def positive(option: str, value: float | None) -> float:
    """A finite number above 0, or a refusal."""
    if value is None or not SIGMA_RANGE[0] <= value <= SIGMA_RANGE[1]:
        raise ConfigError(f"{option} is {value}: give a positive finite number.")
    return value


def whole(option: str, value: int) -> int:
    """A whole number from 1 to 2**53, or a refusal."""
    if not 1 <= value <= MAX_COUNT:
        raise ConfigError(f"{option} is {show(value)}: give a whole number from 1 to 2**53.")
    return value


def share(option: str, value: float) -> float:
    """A probability above 0, or a refusal."""
    if not 0 < value <= 1:
        raise ConfigError(f"{option} is {value}: give a probability above 0 and at most 1.")
    return value


def _figure(value: float) -> str:
    return f"{value:.6g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
