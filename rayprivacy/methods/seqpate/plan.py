"""The plan of SeqPATE: from public sentences to votes, the votes that fit a budget, and the text of the student.

Noise grows with the number of queries, and with the radius that centred votes are clipped to: what fits a budget is
their noise and, by a target for the noise on a mean vote, the queries or the clip. Every figure here is public: it
comes from the budget and from settings, never from the votes.

>>> most_queries(lambda queries: 0.01 * queries**0.5, target=0.05, most=1000)
25
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.accounting import published
from rayprivacy.accounting.events import to_json
from rayprivacy.blocks import match_plan, pretrain_plan
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.generation.settings import require_engine
from rayprivacy.ledger.least_noise import gaussian_noise, is_enough, laplace_noise
from rayprivacy.methods.seqpate.efforts import efforts_of
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.release.votes import CLIP_RANGE, SCALE, VoteMechanism
from rayprivacy.runs.account import whole
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.calibration import kept_values
from rayprivacy.runs.figures_plan import Figures
from rayprivacy.runs.plan import EVALUATION, MODELS_MEASURED, TEXTS_WRITTEN, Block, Plan, Stage, Work

PSEUDO, BASES, FEATURES = "pseudo-sentences", "public bases and warm start", "features of private text"
TRAINING, SELECTION, VOTES = "teachers", "query selection", "votes"
GATE, STUDENT, WRITING = "release gate", "student", "synthetic text"
# What is counted while stages go on.
SENTENCES, WARM_STEPS, PARTS = "sentences_written", "warm_steps_done", "parts_encoded"
TEACHERS, VOTED, STUDENT_STEPS = "teachers_trained", "queries_voted", "student_steps_done"
_PUBLIC = "Prompts, base model and all numbers of the recipe are public and were not chosen by looking at the corpus."
_KEYED = {
    PrivacyUnit.USER: "shard a user falls into",
    PrivacyUnit.RECORD: "shard a record falls into",
    PrivacyUnit.PHRASE: "shards a phrase may stay in",
}
AUTO_MOST = 100_000
WIDEST_CLIP = 0.7071  # from sqrt(1/2) on, a wider clip adds no noise, and clips next to nothing


def plan_run(recipe: SeqPateRecipe) -> Plan:
    """The plan of a recipe."""
    match = match_plan.Match(recipe.teachers.parts)
    return Plan.of(recipe, pretrain_plan.Pretrain(), Votes(), match, Figures(recipe.teachers.parts))


def check_inputs(recipe: SeqPateRecipe) -> None:
    """Refuse an engine that is not installed, and a list of secret phrases that cannot be read, or could overlap."""
    require_engine("pseudo.engine", recipe.pseudo.engine)
    if recipe.corpus.phrases:
        load_phrases(recipe.corpus.phrases)


def queries_by_round(queries: int, rounds: int) -> list[int]:
    """The queries of each round: equal shares, and the first rounds take what is left over."""
    each, left = divmod(queries, rounds)
    return [each + (number < left) for number in range(rounds)]


@dataclass(frozen=True)
class Votes(Block):
    """From pseudo-sentences to the text of the student that learnt from the votes."""

    calibrated: ClassVar[bool] = True
    mechanism: Any = None

    def fitted(self, recipe: SeqPateRecipe, beside: Sequence[DpEvent]) -> "Votes":
        """All queries at one noise multiplier."""
        return Votes(fitting_votes(recipe, whole(beside) if beside else None))

    def stages(self, recipe: SeqPateRecipe) -> tuple[Stage, ...]:
        """The rounds pass the gate one by one, each with a charge of its own."""
        votes, teachers, student = self.mechanism, recipe.teachers, recipe.student
        texts, efforts = recipe.candidates(recipe.generation.texts), efforts_of(recipe, votes.queries)
        rounds = queries_by_round(votes.queries, recipe.votes.rounds)
        charges = tuple(replace(votes, queries=queries).event for queries in rounds)

        def stage(effort: str, name: str, reads: str, detail: str, *work: Work) -> Stage:
            return Stage(name, reads, detail, work=work, efforts=efforts[effort])

        written, trained = recipe.pseudo.texts, f"{teachers.count} on shards of {recipe.corpus.source}"
        asked = f"{votes.queries} queries, {votes.candidates} candidates"
        return (
            stage("pseudo", PSEUDO, "public text", f"{written} texts", Work(SENTENCES, written)),
            stage("bases", BASES, "public text", "", Work(WARM_STEPS, student.warm_steps)),
            stage("features", FEATURES, "private text", "", Work(PARTS, teachers.parts)),
            stage("teachers", TRAINING, "private text", trained, Work(TEACHERS, teachers.count)),
            stage("selection", SELECTION, "public text, released votes", ""),
            stage("votes", VOTES, "teachers", "summed, nothing leaves", Work(VOTED, votes.queries)),
            Stage(GATE, "summed votes", asked, charges, efforts=(), mechanism=votes),
            stage("student", STUDENT, "released votes", "", Work(STUDENT_STEPS, student.steps)),
            stage("writing", WRITING, "the student", f"{texts} texts", Work(TEXTS_WRITTEN, texts)),
        )

    def assumptions(self, recipe: SeqPateRecipe) -> tuple[Placed, ...]:
        """What is public, what leaves, and the noise."""
        left = (
            f"Only the released votes{' and noisy shares' if recipe.match else ''} left the private side; metrics "
            "marked 'releasable: false' are not part of the claim."
        )
        return (
            *at(Where.PUBLIC, _PUBLIC),
            *at(Where.RELEASED, left, f"The key file stayed secret; it decides which {_KEYED[recipe.privacy.unit]}."),
            *at(Where.NOISE, DISCRETE_NOISE[recipe.votes.noise]),
        )

    def facts(self, recipe: SeqPateRecipe) -> Mapping[str, Any]:
        """Noise, shards and models."""
        votes, teachers = self.mechanism, recipe.teachers
        how = "plain" if votes.clip is None else f"centred and clipped to {votes.clip:g}"
        return {
            "protection": votes.protection,
            "noise": f"noise multiplier {votes.sigma:.2f} per query ({votes.noise}), votes {how}, noise on a mean vote"
            f" {noise_on_mean(votes):.4f}",
            "shards": teachers.count,
            "shards_per_part": teachers.stack,
            "as_published": _as_published(recipe, votes),
            "users": float(teachers.count),  # teachers of one user each: fewer users than teachers are no use
            "measuring": _measuring(recipe, votes),
        }


def _measuring(recipe: SeqPateRecipe, votes: VoteMechanism) -> Stage:
    without_privacy = recipe.evaluation.nonprivate_steps and recipe.teachers.kind == "square"
    models = 3 + bool(without_privacy) + bool(recipe.pretrain)
    efforts = efforts_of(recipe, votes.queries)["measuring"]
    return Stage(EVALUATION, "held-out private text", work=(Work(MODELS_MEASURED, models),), efforts=efforts)


def _as_published(recipe: SeqPateRecipe, votes: VoteMechanism) -> dict[str, float]:
    if recipe.votes.noise != "gaussian" or recipe.votes.radius is not None:
        return {}  # the paper has a figure for its own mechanism alone
    figure = published.votes_as_published("SeqPATE (2022)", votes.queries, votes.sigma, recipe.privacy.delta)
    return {figure.label: figure.epsilon}


def fitting_votes(recipe: SeqPateRecipe, beside: DpEvent | None = None) -> VoteMechanism:
    """All queries of a run as one mechanism, with the least noise that fits its budget beside what else is charged."""
    votes, privacy = recipe.votes, recipe.privacy

    def mechanism(queries: int, clip: float | None, sigma: float) -> VoteMechanism:
        return VoteMechanism(
            queries=queries,
            candidates=votes.top_k,
            teachers=recipe.teachers.count,
            sigma=sigma,
            unit=privacy.unit,
            shards=recipe.corpus.max_shards_per_phrase or 1,
            ballot=votes.ballot,
            clip=clip,
            noise=votes.noise,
        )

    def fitted() -> dict[str, Any]:
        found = _fitted(recipe, beside, mechanism)
        return {name: getattr(found, name) for name in ("queries", "clip", "sigma")}

    def enough(found: VoteMechanism) -> bool:
        event = found.event
        return is_enough(ComposedDpEvent([beside, event]) if beside else event, privacy.budget, privacy.composition)

    asked = votes.model_dump(mode="json"), recipe.teachers.count, recipe.corpus.max_shards_per_phrase
    budget = privacy.unit, privacy.epsilon, privacy.delta, privacy.composition, beside and to_json(beside)
    return kept_values(fitted, lambda found: mechanism(**found), enough, "votes", *asked, *budget)


def _fitted(
    recipe: SeqPateRecipe, beside: DpEvent | None, votes_of: Callable[[int, float | None, float], VoteMechanism]
) -> VoteMechanism:
    votes, privacy = recipe.votes, recipe.privacy
    least = laplace_noise if votes.noise == "laplace" else gaussian_noise
    sigma = cache(lambda queries: least(queries, privacy.budget, privacy.composition, beside))

    def mechanism(queries: int, clip: float | None) -> VoteMechanism:
        return votes_of(queries, clip, sigma(queries))

    def clipped(queries: int) -> VoteMechanism:
        radius = votes.radius
        if radius == "auto":
            radius = widest_clip(lambda wide: noise_on_mean(mechanism(queries, wide)), votes.noise_target)
        return mechanism(queries, radius)

    if votes.queries != "auto":
        return clipped(votes.queries)
    return clipped(most_queries(lambda queries: noise_on_mean(clipped(queries)), votes.noise_target, AUTO_MOST))


def noise_on_mean(mechanism: VoteMechanism) -> float:
    """Standard deviation of the noise on one entry of the mean vote, as a probability."""
    return mechanism.noise_std_grid / (SCALE * mechanism.teachers)


def most_queries(noise_of: Callable[[int], float], target: float, most: int) -> int:
    """The largest number of queries, from 1 to `most`, whose noise is within the target; it must not fall with them."""
    if not target > 0:
        raise ConfigError(f"the target for the noise on the mean vote is {target}: give a positive number, e.g. 0.01.")
    if type(most) is not int or most < 1:
        raise ConfigError(f"the most queries are {most!r}: give a whole number of at least 1.")
    if (reached := noise_of(1)) > target:
        raise ConfigError(
            f"the target for the noise on the mean vote is {target:g} and one query alone has {reached:.3g}:"
            " take more teachers, a larger epsilon, a smaller clip or a larger target."
        )
    low, high = 1, most + 1  # low is within the target, high is not, or is one too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if noise_of(middle) <= target else (low, middle)
    return low


def widest_clip(noise_of: Callable[[float], float], target: float) -> float:
    """The widest radius for centred votes, of four digits, whose noise is within the target, or else the least one.

    The noise of a mean vote (`noise_on_mean`) must grow in proportion to the radius up to WIDEST_CLIP.

    >>> widest_clip(lambda radius: 0.07 * radius, target=0.014)
    0.2
    """
    if not target > 0:
        raise ConfigError(f"the target for the noise on the mean vote is {target}: give a positive number, e.g. 0.01.")
    radius = target / noise_of(0.5) / 2
    return min(max(math.floor(radius * 1e4 + 1e-6) / 1e4, CLIP_RANGE[0]), WIDEST_CLIP)
