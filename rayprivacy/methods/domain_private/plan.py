"""The plan of domain-private training: the schedule's noisy steps, with the least noise that fits the budget for them.

The paper calibrates the noise for all T steps and then takes few of them. Here the noisy steps are drawn before the
run, so the noise is calibrated for those alone; the paper's way of counting is printed beside it, as published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from dp_accounting.dp_event import DpEvent

from rayprivacy.blocks.pretrain_plan import Pretrain
from rayprivacy.blocks.steps_plan import Steps, fitting_noise, sampled_steps
from rayprivacy.blocks.writing_plan import Writing, measuring_stage
from rayprivacy.methods.domain_private.claim import as_published, assumptions_of, figures_of, second_account
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.models.size import size_of
from rayprivacy.policies.settings import make_policy
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import Placed
from rayprivacy.runs.plan import Plan, composed

STEPS, WRITING = "scheduled DP-SGD", "synthetic text"


class Scheduled(Steps):
    """The training: noisy steps on full text, and redacted ones, with light noise if a central account pays for it."""

    def fitted(self, recipe: DomainPrivateRecipe, beside: Sequence[DpEvent]) -> Self:
        """With the recipe's noise multipliers, or the least that fit the budget of each account."""
        schedule = recipe.schedule
        noisy = [step for step, redacted in enumerate(schedule) if not redacted]
        full = sampled_steps(self.training, recipe.privacy, composed(beside) if beside else None, noisy)
        steps = replace(full, redacted=schedule, policy=make_policy(recipe.policy, recipe.kept).digest)
        return replace(self, mechanism=replace(steps, light=_light(recipe, steps)))

    def assumptions(self, recipe: DomainPrivateRecipe) -> tuple[Placed, ...]:
        """Those of any training, and what is protected of a user."""
        return (*assumptions_of(recipe, policy_name(recipe)), *super().assumptions(recipe))

    def facts(self, recipe: DomainPrivateRecipe) -> Mapping[str, Any]:
        """Policy, accounts and figures."""
        steps, policy = self.mechanism, policy_name(recipe)
        second, published = second_account(recipe, steps), as_published(recipe, steps.steps - sum(steps.redacted))
        return {
            **super().facts(recipe),
            "policy": policy,
            "figures": {"Policy": policy, **figures_of(recipe, steps, second, published)},
            "as_published": published,
            "second": second,
        }


def _light(recipe: DomainPrivateRecipe, steps: NoisySteps) -> float:
    """The noise multiplier of redacted steps; 0 where no central account pays for it."""
    budget, given = recipe.central_budget, recipe.redacted.noise_multiplier
    if budget is None or given is not None:
        return given or 0.0
    lines = ((recipe.training.sampling_rate, sum(steps.redacted), 1.0),)
    return fitting_noise(lines, steps.event, budget, recipe.privacy.composition)


def policy_name(recipe: DomainPrivateRecipe) -> str:
    """What the account calls the policy: its kind, and the digest of the function that workers apply.

    Raises:
        ConfigError: the policy cannot be made, or hides a word of corpus.join.prefix.
    """
    return f"{recipe.policy.kind} {make_policy(recipe.policy, recipe.kept).digest}"


def plan_run(recipe: DomainPrivateRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough for the budget.
    """
    steps, size = recipe.training.steps, size_of(recipe.model.base)
    noisy = steps - sum(recipe.schedule)
    detail = f"{steps} steps on {recipe.corpus.source}, {noisy} of them noisy, {recipe.adapter.kind}"
    return Plan.of(
        recipe,
        Pretrain(),
        Scheduled(STEPS, recipe.training, detail, size),
        Writing(WRITING, recipe.generation),
        measuring=measuring_stage(recipe, size, recipe.training.max_tokens, 2 + bool(recipe.pretrain)),
    )
