"""The plan of knowledge: a count of names and one or two of answers, calibrated together, and what is written of them.

Half of delta goes to the thresholds, the same to each count. With what is left the budget allows one Gaussian release
of multiplier sigma; a count that gets a share s of it has multiplier sigma / sqrt(s), because 1 / sigma^2 adds up by
each rule. Imports neither torch nor Ray.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import round_up
from rayprivacy.core.units import Protection
from rayprivacy.knowledge.settings import KnowledgeConfig
from rayprivacy.ledger.least_noise import gaussian_noise, is_enough
from rayprivacy.ledger.rules import GRID, less, threshold_units
from rayprivacy.methods.knowledge.recipe import KnowledgeRecipe
from rayprivacy.models.size import size_of
from rayprivacy.questions.settings import require_extra
from rayprivacy.release.thresholded import ThresholdedCounts
from rayprivacy.release.votes import SCALE
from rayprivacy.runs.account import whole
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.calibration import kept
from rayprivacy.runs.plan import EVALUATION, Block, Effort, Plan, Stage, Work

NAMES, ANSWERS, AGAIN = "names", "answers", "answers to what is open"
FACTS, MODEL = "facts, passages and questions", "model of the facts"
PARTS_COUNTED, STEPS_LEARNT = "parts_counted", "steps_learnt"
_OF_DELTA = 0.5  # what thresholds take
_NAMES = 100  # released names, for a plan that cannot know how many there will be
_OF_USER = {NAMES: 5e8, ANSWERS: 6e8, AGAIN: 6e8}  # operations that take as long as reading ten short texts
_PUBLIC = (
    "What is asked about names (knowledge), the list of English words, and a file of names if there is one, are public"
    " and were not chosen by looking at the corpus."
)
_RELEASED = (
    "Names and answers whose noisy numbers of users are above the threshold, which is lower for known answers, left the"
    " private side, with these numbers; the others did not, nor how many they are. That an answer is released says that"
    " many users state it, not that it is true; of questions that nobody answers, one in 200 may get a known answer by"
    " chance."
)


@dataclass(frozen=True)
class Counts(Block):
    """All counts, by the name of their stage."""

    calibrated: ClassVar[bool] = True
    mechanisms: Mapping[str, ThresholdedCounts] = field(default_factory=dict)

    def fitted(self, recipe: KnowledgeRecipe, beside: Sequence[DpEvent]) -> "Counts":
        """With the least noise."""
        config, privacy = recipe.knowledge, recipe.privacy
        shares, budget = shares_of(config), privacy.budget

        def made(sigma: float) -> dict[str, ThresholdedCounts]:
            most = {stage: config.names.most if stage == NAMES else config.answers.most for stage in shares}
            delta = _OF_DELTA * privacy.delta / len(shares)
            return {
                stage: ThresholdedCounts(most[stage], sigma / math.sqrt(share), delta)
                for stage, share in shares.items()
            }

        left = less(budget, threshold_delta(made(1.0)))
        sigma = kept(
            lambda: gaussian_noise(1, left, privacy.composition),
            lambda found: is_enough(whole([each.event for each in made(found).values()]), budget, privacy.composition),
            "thresholded counts",
            *(list(shares.values()), budget.epsilon, budget.delta, privacy.composition),
        )
        return Counts(made(sigma))

    def stages(self, recipe: KnowledgeRecipe) -> tuple[Stage, ...]:
        """One charge each."""
        config, parts = recipe.knowledge, recipe.resources.parts
        return tuple(
            Stage(
                name,
                "private text",
                f"at most {each.most} of a user; {_needs(name, each, config)}",
                (each.event,),
                work=(Work(PARTS_COUNTED, parts),),
                efforts=(Effort("product", _OF_USER[name], users=True, processes=parts, threads=False),),
                mechanism=each,
            )
            for name, each in self.mechanisms.items()
        )

    def assumptions(self, recipe: KnowledgeRecipe) -> tuple[Placed, ...]:
        """What is public, what left, and the noise."""
        noise = at(Where.NOISE, DISCRETE_NOISE["gaussian"])
        return (*at(Where.PUBLIC, _PUBLIC), *at(Where.RELEASED, _RELEASED), *noise)

    def facts(self, recipe: KnowledgeRecipe) -> Mapping[str, Any]:
        """Thresholds, which people read first."""
        figures = {
            f"Threshold of {name}": f"{_needs(name, each, recipe.knowledge)}; delta_T {each.delta:.3g}"
            for name, each in self.mechanisms.items()
        }
        if known := known_answers(recipe.knowledge):
            needed = {what: users_needed(self.mechanisms[ANSWERS], many) for what, many in known.items()}
            figures["Known answers"] = "; ".join(f"{what}: about {users} users" for what, users in needed.items())
        noise = ", ".join(f"{name} {each.sigma:.4g}" for name, each in self.mechanisms.items())
        return {
            "protection": Protection(recipe.privacy.unit),
            "noise": f"noise multipliers: {noise}; thresholds take delta {threshold_delta(self.mechanisms):.3g}",
            "shards": recipe.resources.parts,
            "figures": figures,
        }

    def check(self, recipe: KnowledgeRecipe) -> None:
        """Refuse a package that is not here, or names that cannot be read."""
        file = recipe.knowledge.names.file
        require_extra("knowledge needs", words=file is None)
        if file is not None:
            from rayprivacy.knowledge.names import public_names  # of the extra `questions`

            public_names(file)


class Written(Block):
    """What is written, and learnt, from released facts for nothing."""

    def stages(self, recipe: KnowledgeRecipe) -> tuple[Stage, ...]:
        """Without the key `model` no model."""
        config, size = recipe.knowledge.model, size_of(recipe.model.base)
        written = Stage(FACTS, "released counts", efforts=())
        if config is None:
            return (written,)
        efforts = (Effort("train", size.trained(config.steps * config.batch * config.max_tokens)),)
        detail = f"{config.steps} steps of {config.batch} rows of {config.max_tokens} tokens, all weights"
        work = (Work(STEPS_LEARNT, config.steps),)
        return written, Stage(MODEL, "released facts", detail, work=work, efforts=efforts)


def plan_run(recipe: KnowledgeRecipe) -> Plan:
    """The plan of a recipe."""
    return Plan.of(recipe, Counts(), Written(), measuring=Stage(EVALUATION, "released facts", efforts=()))


def shares_of(config: KnowledgeConfig) -> dict[str, float]:
    """What of the budget each count gets."""
    names = 0.0 if config.names.file else config.names_share
    rounds = (ANSWERS, AGAIN)[: config.rounds]
    found = {NAMES: names} if names else {}
    return found | dict.fromkeys(rounds, (1 - names) / len(rounds))


def threshold_delta(mechanisms: Mapping[str, ThresholdedCounts]) -> float:
    """What all thresholds take of delta, as an account that is opened for them keeps it."""
    return round_up(Fraction(threshold_units([each.event for each in mechanisms.values()]), GRID))


def users_needed(mechanism: ThresholdedCounts, known: int = 0) -> int:
    """About how many users a key, or one of so many known, needs: with so many it is released in half of the cases."""
    return math.ceil((mechanism.cut(known) if known else mechanism.threshold) / SCALE)


def known_answers(config: KnowledgeConfig, names: int = _NAMES) -> dict[str, int]:
    """How many known answers attributes have if so many names are released, by those that have as many, in words."""
    known, found = config.known([str(each) for each in range(names)]), dict[tuple[int, str], list[str]]()
    for each in config.attributes:
        if each.name in known:
            of = " released names" if each.kind == "name" else ""
            found.setdefault((len(known[each.name]), of), []).append(each.name)
    return {f"{', '.join(alike)} (one of {many}{of})": many for (many, of), alike in found.items()}


def _needs(stage: str, mechanism: ThresholdedCounts, config: KnowledgeConfig) -> str:
    if stage == NAMES:
        return f"a name needs about {users_needed(mechanism)} users"
    known = sorted(users_needed(mechanism, many) for many in known_answers(config).values())
    less = f", one with a known answer {' to '.join(map(str, sorted({known[0], known[-1]})))}" if known else ""
    return f"a fact needs about {users_needed(mechanism)} users{less}"
