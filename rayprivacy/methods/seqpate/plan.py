"""The plan of SeqPATE: its stages, the mechanism of each round of votes, and the noise that the budget asks for."""

from functools import lru_cache

from rayprivacy.accounting import published
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.generation.engines import require_engine
from rayprivacy.ledger.least_noise import gaussian_noise, laplace_noise
from rayprivacy.methods.seqpate.efforts import efforts_of
from rayprivacy.methods.seqpate.noise_target import most_queries, noise_on_mean, widest_clip
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.runs.assumptions import DISCRETE_NOISE, OF_UNIT, TIMING
from rayprivacy.runs.match_plan import candidates_of, charged_margins, check_match, match_stages
from rayprivacy.runs.plan import EVALUATION, MODELS_MEASURED, TEXTS_WRITTEN, Plan, Stage, Work
from rayprivacy.runs.pretrain_plan import check_pretrain, pretrain_assumptions, pretrain_stages

AUTO_MOST = 100_000
GATE, WRITING = "release gate", "synthetic text"
# What is counted while stages go on.
SENTENCES, WARM_STEPS, PARTS = "sentences_written", "warm_steps_done", "parts_encoded"
TEACHERS, VOTED, STUDENT_STEPS = "teachers_trained", "queries_voted", "student_steps_done"
_PUBLIC = "Prompts, base model and all numbers of the recipe are public and were not chosen by looking at the corpus."
_KEYED = {
    PrivacyUnit.USER: "shard a user falls into",
    PrivacyUnit.RECORD: "shard a record falls into",
    PrivacyUnit.PHRASE: "shards a phrase may stay in",
}


@lru_cache(maxsize=16)
def planned_mechanism(recipe: SeqPateRecipe) -> VoteMechanism:
    """All queries of the run as one mechanism: its unit and bound on shards, and the least noise that fits its budget.

    Raises:
        ConfigError: no noise is enough, or not one query keeps votes.noise_target.
    """
    queries = planned_queries(recipe)
    return _mechanism(recipe, queries, planned_clip(recipe, queries))


def round_mechanism(recipe: SeqPateRecipe, queries: int) -> VoteMechanism:
    """The mechanism of one round: some of the queries, at the noise that all of them need together."""
    plan = planned_mechanism(recipe)
    return VoteMechanism(**{**vars(plan), "queries": queries})


def planned_queries(recipe: SeqPateRecipe) -> int:
    """How many queries the run pays for; with `auto`, the most that keep the target on noise."""
    if recipe.votes.queries != "auto":
        return recipe.votes.queries

    def noise(queries: int) -> float:
        return noise_on_mean(_mechanism(recipe, queries, planned_clip(recipe, queries)))

    return most_queries(noise, recipe.votes.noise_target, AUTO_MOST)


def planned_clip(recipe: SeqPateRecipe, queries: int) -> float | None:
    """The radius of centred votes; with `auto`, the widest that keeps the target on noise. None: votes are plain."""
    if recipe.votes.radius != "auto":
        return recipe.votes.radius
    return widest_clip(lambda radius: noise_on_mean(_mechanism(recipe, queries, radius)), recipe.votes.noise_target)


def queries_of_round(recipe: SeqPateRecipe, number: int) -> int:
    """The queries of round `number` (from 0): equal shares, and the first rounds take what is left over."""
    each, left = divmod(planned_queries(recipe), recipe.votes.rounds)
    return each + (number < left)


def _mechanism(recipe: SeqPateRecipe, queries: int, clip: float | None) -> VoteMechanism:
    votes, privacy = recipe.votes, recipe.privacy
    least = laplace_noise if votes.noise == "laplace" else gaussian_noise
    margins = charged_margins(recipe)
    return VoteMechanism(
        queries=queries,
        candidates=votes.top_k,
        teachers=recipe.teachers.count,
        sigma=least(queries, privacy.budget, privacy.composition, margins.event if margins else None),
        unit=privacy.unit,
        shards=recipe.corpus.max_shards_per_phrase or 1,
        ballot=votes.ballot,
        clip=clip,
        noise=votes.noise,
    )


def check_inputs(recipe: SeqPateRecipe) -> None:
    """Refuse a list of secret phrases or public text that cannot be used, an engine and packages that are not there.

    Raises:
        ConfigError: the list or the text cannot be read, or phrases could overlap; or the engine, or what `match`
            needs, is not installed.
    """
    require_engine("pseudo.engine", recipe.pseudo.engine)
    check_match(recipe.match)
    check_pretrain(recipe.pretrain)
    if recipe.corpus.phrases:
        load_phrases(recipe.corpus.phrases)


def plan_run(recipe: SeqPateRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough, or not one query keeps votes.noise_target.
    """
    mechanism, unit = planned_mechanism(recipe), recipe.privacy.unit
    how = "plain" if mechanism.clip is None else f"centred and clipped to {mechanism.clip:g}"
    return Plan(
        stages=_stages(recipe, mechanism),
        protection=mechanism.protection,
        noise=f"noise multiplier {mechanism.sigma:.2f} per query ({recipe.votes.noise}), votes {how}, noise on a mean"
        f" vote {noise_on_mean(mechanism):.4f}",
        assumptions=(
            *OF_UNIT[unit],
            _PUBLIC,
            *pretrain_assumptions(recipe.pretrain),
            f"Only the released votes{' and noisy shares' if recipe.match else ''} left the private side; metrics "
            "marked 'releasable: false' are not part of the claim.",
            f"The key file stayed secret; it decides which {_KEYED[unit]}.",
            DISCRETE_NOISE[recipe.votes.noise],
            TIMING,
        ),
        shards=recipe.teachers.count,
        shards_per_part=recipe.teachers.stack,
        as_published=_as_published(recipe, mechanism),
        users=float(recipe.teachers.count),  # teachers of one user each: fewer users than teachers are no use
        measuring=_measuring(recipe, mechanism),
    )


def _stages(recipe: SeqPateRecipe, mechanism: VoteMechanism) -> tuple[Stage, ...]:
    teachers, source = recipe.teachers, recipe.corpus.source
    texts = candidates_of(recipe.match, recipe.generation.texts)
    rounds = [round_mechanism(recipe, queries_of_round(recipe, number)) for number in range(recipe.votes.rounds)]
    steps, efforts = recipe.student, efforts_of(recipe, mechanism.queries)
    trained = (Work(TEACHERS, teachers.count),)
    return (
        *pretrain_stages(recipe.pretrain, recipe.model.base, recipe.generation.engine),
        Stage(
            "pseudo-sentences",
            "public text",
            f"{recipe.pseudo.texts} texts",
            work=(Work(SENTENCES, recipe.pseudo.texts),),
            efforts=efforts["pseudo"],
        ),
        Stage(
            "public bases and warm start",
            "public text",
            work=(Work(WARM_STEPS, steps.warm_steps),),
            efforts=efforts["bases"],
        ),
        Stage(
            "features of private text",
            "private text",
            work=(Work(PARTS, teachers.parts),),
            efforts=efforts["features"],
        ),
        Stage(
            "teachers",
            "private text",
            f"{teachers.count} on shards of {source}",
            work=trained,
            efforts=efforts["teachers"],
        ),
        Stage("query selection", "public text, released votes", efforts=efforts["selection"]),
        Stage(
            "votes",
            "teachers",
            "summed, nothing leaves",
            work=(Work(VOTED, mechanism.queries),),
            efforts=efforts["votes"],
        ),
        Stage(GATE, "summed votes", _asked(mechanism), tuple(each.event for each in rounds), efforts=()),
        Stage("student", "released votes", work=(Work(STUDENT_STEPS, steps.steps),), efforts=efforts["student"]),
        Stage(
            WRITING,
            "the student",
            f"{texts} texts",
            work=(Work(TEXTS_WRITTEN, texts),),
            efforts=efforts["writing"],
        ),
        *match_stages(recipe, recipe.generation.texts, teachers.parts),
    )


def _measuring(recipe: SeqPateRecipe, mechanism: VoteMechanism) -> Stage:
    """The base, what it became by pretraining, the student before and after the votes, and where it is wanted a model
    without privacy.
    """
    without_privacy = recipe.evaluation.nonprivate_steps and recipe.teachers.kind == "square"
    models = 3 + bool(without_privacy) + bool(recipe.pretrain)
    efforts = efforts_of(recipe, mechanism.queries)["measuring"]
    return Stage(EVALUATION, "held-out private text", work=(Work(MODELS_MEASURED, models),), efforts=efforts)


def _asked(mechanism: VoteMechanism) -> str:
    return f"{mechanism.queries} queries, {mechanism.candidates} candidates"


def _as_published(recipe: SeqPateRecipe, mechanism: VoteMechanism) -> dict[str, float]:
    if recipe.votes.noise != "gaussian" or recipe.votes.radius is not None:
        return {}  # the paper has a figure for its own mechanism alone
    figure = published.votes_as_published("SeqPATE (2022)", mechanism.queries, mechanism.sigma, recipe.privacy.delta)
    return {figure.label: figure.epsilon}
