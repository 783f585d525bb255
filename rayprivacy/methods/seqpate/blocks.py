"""The block that SeqPATE has of its own: from public sentences to votes, and to the text of the student."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import published
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.methods.seqpate.efforts import efforts_of
from rayprivacy.methods.seqpate.noise_target import fitting_votes, noise_on_mean
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.runs.account import whole
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.plan import EVALUATION, MODELS_MEASURED, TEXTS_WRITTEN, Block, Stage, Work

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

        trained = f"{teachers.count} on shards of {recipe.corpus.source}"
        asked = f"{votes.queries} queries, {votes.candidates} candidates"
        return (
            stage(
                "pseudo", PSEUDO, "public text", f"{recipe.pseudo.texts} texts", Work(SENTENCES, recipe.pseudo.texts)
            ),
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
    """The base, what it became by pretraining, the student before and after the votes, and where it is wanted a model
    without privacy.
    """
    without_privacy = recipe.evaluation.nonprivate_steps and recipe.teachers.kind == "square"
    models = 3 + bool(without_privacy) + bool(recipe.pretrain)
    efforts = efforts_of(recipe, votes.queries)["measuring"]
    return Stage(EVALUATION, "held-out private text", work=(Work(MODELS_MEASURED, models),), efforts=efforts)


def _as_published(recipe: SeqPateRecipe, votes: VoteMechanism) -> dict[str, float]:
    if recipe.votes.noise != "gaussian" or recipe.votes.radius is not None:
        return {}  # the paper has a figure for its own mechanism alone
    figure = published.votes_as_published("SeqPATE (2022)", votes.queries, votes.sigma, recipe.privacy.delta)
    return {figure.label: figure.epsilon}
