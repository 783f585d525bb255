"""The plan of domain-private training: its noisy steps, with the least noise that fits, and what is claimed of them.

The paper calibrates the noise for all T steps and then takes few of them. Here the noisy steps are drawn before the
run, so the noise is calibrated for those alone; the paper's way of counting is printed beside it, as published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import accountant, events
from rayprivacy.blocks import pretrain_plan, steps_plan, writing_plan
from rayprivacy.core.units import Protection
from rayprivacy.dpsgd.settings import NoiseScheduleConfig
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.methods.domain_private.schedules import expected_noisy
from rayprivacy.models.size import size_of
from rayprivacy.policies.settings import make_policy
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.plan import Plan, SecondAccount, composed

STEPS, WRITING = "scheduled DP-SGD", "synthetic text"


class Scheduled(steps_plan.Steps):
    """The training: noisy steps on full text, and redacted ones, with light noise if a central account pays for it."""

    def fitted(self, recipe: DomainPrivateRecipe, beside: Sequence[DpEvent]) -> Self:
        """With the recipe's noise multipliers, or the least that fit the budget of each account."""
        schedule = recipe.schedule
        noisy = [step for step, redacted in enumerate(schedule) if not redacted]
        full = steps_plan.sampled_steps(self.training, recipe.privacy, composed(beside) if beside else None, noisy)
        steps = replace(full, redacted=schedule, policy=make_policy(recipe.policy, recipe.kept).digest)
        return replace(self, mechanism=replace(steps, light=_light(recipe, steps)))

    def assumptions(self, recipe: DomainPrivateRecipe) -> tuple[Placed, ...]:
        """Those of any training, and what is protected of a user."""
        return (*_assumptions_of(recipe, policy_name(recipe)), *super().assumptions(recipe))

    def facts(self, recipe: DomainPrivateRecipe) -> Mapping[str, Any]:
        """Policy, accounts and figures."""
        steps, policy = self.mechanism, policy_name(recipe)
        second, published = _second_account(recipe, steps), _as_published(recipe, steps.steps - sum(steps.redacted))
        return {
            **super().facts(recipe),
            "policy": policy,
            "figures": {"Policy": policy, **_figures_of(recipe, steps, second, published)},
            "as_published": published,
            "second": second,
        }


def _light(recipe: DomainPrivateRecipe, steps: NoisySteps) -> float:
    """The noise multiplier of redacted steps; 0 where no central account pays for it."""
    budget, given = recipe.central_budget, recipe.redacted.noise_multiplier
    if budget is None or given is not None:
        return given or 0.0
    lines = ((recipe.training.sampling_rate, sum(steps.redacted), 1.0),)
    return steps_plan.fitting_noise(lines, steps.event, budget, recipe.privacy.composition)


def policy_name(recipe: DomainPrivateRecipe) -> str:
    """What the account calls the policy: its kind, and the digest of the function that workers apply."""
    return f"{recipe.policy.kind} {make_policy(recipe.policy, recipe.kept).digest}"


def plan_run(recipe: DomainPrivateRecipe) -> Plan:
    """The plan of a recipe."""
    steps, size = recipe.training.steps, size_of(recipe.model.base)
    noisy = steps - sum(recipe.schedule)
    detail = f"{steps} steps on {recipe.corpus.source}, {noisy} of them noisy, {recipe.adapter.kind}"
    return Plan.of(
        recipe,
        pretrain_plan.Pretrain(),
        Scheduled(STEPS, recipe.training, detail, size),
        writing_plan.Writing(WRITING, recipe.generation),
        measuring=writing_plan.measuring_stage(recipe, size, recipe.training.max_tokens, 2 + bool(recipe.pretrain)),
    )


def _second_account(recipe: DomainPrivateRecipe, steps: NoisySteps) -> SecondAccount | None:
    budget, central = recipe.central_budget, recipe.redacted.central
    if budget is None or central is None:
        return None
    return SecondAccount(central.account, budget, Protection(steps.unit), steps.central_event_of(range(steps.steps)))


def _figures_of(
    recipe: DomainPrivateRecipe, mechanism: NoisySteps, second: SecondAccount | None, published: dict[str, float]
) -> dict[str, str]:
    noisy = mechanism.steps - sum(mechanism.redacted)
    expected = expected_noisy(recipe.redacted.schedule, mechanism.steps)
    return {
        "Noisy steps": f"{noisy} of {mechanism.steps}, drawn by the public seed; {expected:.3g} are expected",
        **_levels(mechanism),
        "For plain differential privacy": _for_users(mechanism, second, recipe.privacy.composition),
        "As published": ", ".join(f"{name}: {value:.4g}" for name, value in published.items()),
    }


def _levels(mechanism: NoisySteps) -> dict[str, str]:
    found = [(leaf.event.noise_multiplier, times) for leaf, times in events.leaves(mechanism.event)]
    named = ", ".join(f"{sigma:.4g} ({times} steps)" for sigma, times in found)
    return {"Noise multipliers of noisy steps": named} if len(found) > 1 else {}


def _for_users(mechanism: NoisySteps, second: SecondAccount | None, composition: str) -> str:
    if second is None:
        return "central: non-private run"
    spent = accountant.epsilon([second.event], second.budget.delta, "pld" if composition == "pld" else "rdp")
    return (
        f"epsilon {spent:.4g} at delta {second.budget.delta:g} for a user, whatever the policy finds: redacted steps "
        f"take noise of multiplier {mechanism.light:.4g}, and account '{second.account}' pays for all "
        f"{mechanism.steps} steps"
    )


def _as_published(recipe: DomainPrivateRecipe, noisy: int) -> dict[str, float]:
    """The paper's count: noise for all steps, or those of JFT's second stage; epsilon by RDP of the noisy ones."""
    steps = noisy if recipe.redacted.schedule == "step" else recipe.training.steps
    plain = {"steps": steps, "noise_schedule": NoiseScheduleConfig(), "microbatches": None}
    theirs = steps_plan.sampled_steps(recipe.training.model_copy(update=plain), recipe.privacy)
    spent = accountant.epsilon([theirs.event_of(range(noisy))], recipe.privacy.delta, "rdp")
    return {
        f"noise multiplier, calibrated for {steps} steps": theirs.noise_multiplier,
        "epsilon that it was calibrated for": recipe.privacy.epsilon,
        f"epsilon of {noisy} noisy steps with it, by Renyi DP, called differential privacy": spent,
    }


def _assumptions_of(recipe: DomainPrivateRecipe, policy: str) -> tuple[Placed, ...]:
    noise = "no noise" if recipe.redacted.central is None else "light noise alone"
    return (
        *at(
            Where.CLAIM,
            f"Protected is what the public policy '{policy}' hides, and nothing else. What it does not find (a name, a "
            f"number in an odd format) is trained on with {noise}, and may come out word for word.",
            "Neighbours have the same redacted copies, and differ in whether the full text of one user takes part in "
            "the noisy steps. To exchange it for another text with the same copies counts twice: (2 epsilon, "
            "(1 + e^epsilon) delta).",
            "That something was redacted, and where, is not protected; nor are labels, and so the domain of a text.",
            "Whole domains are groups of many users: nothing is promised of them. Leak rates are measurements.",
        ),
        *at(Where.PUBLIC, *_of_policy(recipe)),
        *at(
            Where.RELEASED,
            "Sampling rate, batch size, steps, the schedule with its seed, clipping norm and the lists of label values "
            "are public, and so is the base model; none was chosen by looking at the corpus.",
            "Steps on redacted copies are not charged to the selective account: they are computed from these copies and"
            " from weights that were released with noise.",
            *_of_central(recipe),
        ),
    )


def _of_central(recipe: DomainPrivateRecipe) -> tuple[str, ...]:
    central = recipe.redacted.central
    if central is None:
        return ()
    return (
        f"What account '{central.account}' pays for protects users, and rests on clipping, sampling and noise of all "
        "steps: on the policy only in that it reads each row alone.",
    )


def _of_policy(recipe: DomainPrivateRecipe) -> tuple[str, ...]:
    policy = recipe.policy
    said = {
        "patterns": "",
        "keywords": "The list of keywords is public and was not made from the corpus.",
        "slots": "The word labels of the corpus that the policy reads were given row by row, and are private.",
        "classifier": "The text on which the policy's classifier was trained is public, and so are its window and "
        "threshold; none was chosen by attacks on models of the corpus.",
    }[policy.kind]
    return (said,) if said else ()
