"""The plan of domain-private training: the schedule's noisy steps, with the least noise that fits the budget for them.

The paper calibrates the noise for all T steps and then takes few of them. Here the noisy steps are drawn before the
run, so the noise is calibrated for those alone; the paper's way of counting is printed beside it, as published.
"""

from dataclasses import replace

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import leaves
from rayprivacy.core.units import Protection
from rayprivacy.dpsgd.settings import NoiseScheduleConfig
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.models.size import size_of
from rayprivacy.policies.make import make_policy
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import OF_UNIT, TIMING, of_training
from rayprivacy.runs.model_stages import measuring_stage, writing_stage
from rayprivacy.runs.plan import Plan, SecondAccount, training_stage
from rayprivacy.runs.pretrain_plan import check_pretrain, pretrain_assumptions, pretrain_stages
from rayprivacy.runs.sampled_steps import (
    PART_FILES,
    fitting_noise,
    guessed_users,
    noise_line,
    sampled_steps,
    steps_efforts,
)

STEPS, WRITING = "scheduled DP-SGD", "synthetic text"


def planned_steps(recipe: DomainPrivateRecipe) -> NoisySteps:
    """The steps: the noisy ones with the recipe's noise multiplier, or the least that fits the budget for them.

    Redacted ones have light noise where a central account pays for all steps: the recipe's, or the least that fits the
    budget of that account.

    Raises:
        ConfigError: no noise is enough.
    """
    schedule = recipe.schedule
    noisy = [step for step, redacted in enumerate(schedule) if not redacted]
    full = sampled_steps(recipe.training, recipe.privacy, charged=noisy)
    steps = replace(full, redacted=schedule, policy=make_policy(recipe.policy, recipe.kept).digest)
    return replace(steps, light=_light(recipe, steps))


def _light(recipe: DomainPrivateRecipe, steps: NoisySteps) -> float:
    """The noise multiplier of redacted steps; 0 where no central account pays for it."""
    budget, given = recipe.central_budget, recipe.redacted.noise_multiplier
    if budget is None:
        return 0.0
    if given is not None:
        return given
    lines = ((recipe.training.sampling_rate, sum(steps.redacted), 1.0),)
    return fitting_noise(lines, steps.event, budget, recipe.privacy.composition)


def _central(recipe: DomainPrivateRecipe, steps: NoisySteps) -> SecondAccount | None:
    """The plain account that pays for all steps besides."""
    budget, central = recipe.central_budget, recipe.redacted.central
    if budget is None or central is None:
        return None
    return SecondAccount(central.account, budget, Protection(steps.unit), steps.central_event_of(range(steps.steps)))


def check_inputs(recipe: DomainPrivateRecipe) -> None:
    """Refuse public text that cannot be used, and a policy that is not the one of the recipe's digest.

    Raises:
        ConfigError: names the key.
    """
    check_pretrain(recipe.pretrain)
    make_policy(recipe.policy, recipe.kept)


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
    mechanism = planned_steps(recipe)
    noisy, second = mechanism.steps - sum(mechanism.redacted), _central(recipe, mechanism)
    published = _as_published(recipe, noisy)
    detail = f"{mechanism.steps} steps on {recipe.corpus.source}, {noisy} of them noisy, {recipe.adapter.kind}"
    size = size_of(recipe.model.base)
    efforts = steps_efforts(size, recipe.training, recipe.resources)
    return Plan(
        stages=(
            *pretrain_stages(recipe.pretrain, recipe.model.base, recipe.generation.engine),
            training_stage(STEPS, detail, mechanism, recipe.training.chunk, efforts),
            writing_stage(WRITING, recipe.model.base, recipe.generation, recipe.resources.actors),
        ),
        protection=mechanism.protection,
        noise=noise_line(mechanism, recipe.training),
        assumptions=_assumptions(recipe),
        shards=PART_FILES,
        policy=policy_name(recipe),
        figures={
            "Policy": policy_name(recipe),
            "Noisy steps": f"{noisy} of {mechanism.steps}",
            **_levels(mechanism),
            "For plain differential privacy": _for_users(mechanism, second, recipe.privacy.composition),
            "As published": ", ".join(f"{name}: {value:.4g}" for name, value in published.items()),
        },
        as_published=published,
        users=guessed_users(recipe.training),
        measuring=measuring_stage(recipe, size, recipe.training.max_tokens, 2 + bool(recipe.pretrain)),
        second=second,
    )


def _levels(mechanism: NoisySteps) -> dict[str, str]:
    """The noise multiplier of every level of noisy steps; nothing where they have one."""
    found = [(leaf.event.noise_multiplier, times) for leaf, times in leaves(mechanism.event)]
    named = ", ".join(f"{sigma:.4g} ({times} steps)" for sigma, times in found)
    return {"Noise multipliers of noisy steps": named} if len(found) > 1 else {}


def _for_users(mechanism: NoisySteps, second: SecondAccount | None, composition: str) -> str:
    if second is None:
        return "central: non-private run"
    spent = epsilon([second.event], second.budget.delta, "pld" if composition == "pld" else "rdp")
    return (
        f"epsilon {spent:.4g} at delta {second.budget.delta:g} for a user, whatever the policy finds: redacted steps "
        f"take noise of multiplier {mechanism.light:.4g}, and account '{second.account}' pays for all "
        f"{mechanism.steps} steps"
    )


def _as_published(recipe: DomainPrivateRecipe, noisy: int) -> dict[str, float]:
    """The paper's count: noise for all steps, or those of JFT's second stage; epsilon by RDP of the noisy ones."""
    steps = noisy if recipe.redacted.schedule == "step" else recipe.training.steps
    plain = {"steps": steps, "noise_schedule": NoiseScheduleConfig(), "microbatches": None}
    theirs = sampled_steps(recipe.training.model_copy(update=plain), recipe.privacy)
    spent = epsilon([theirs.event_of(range(noisy))], recipe.privacy.delta, "rdp")
    return {
        f"noise multiplier, calibrated for {steps} steps": theirs.noise_multiplier,
        "epsilon that it was calibrated for": recipe.privacy.epsilon,
        f"epsilon of {noisy} noisy steps with it, by Renyi DP, called differential privacy": spent,
    }


def _assumptions(recipe: DomainPrivateRecipe) -> tuple[str, ...]:
    unit = recipe.privacy.unit
    return (
        f"Protected is what the public policy '{policy_name(recipe)}' hides, and nothing else. What it does not find "
        f"(a name, a number in an odd format) is trained on with {_noise_of_copies(recipe)}, and may come out word for "
        "word.",
        "Neighbours have the same redacted copies, and differ in whether the full text of one user takes part in the "
        "noisy steps. To exchange it for another text with the same copies counts twice: (2 epsilon, "
        "(1 + e^epsilon) delta).",
        "That something was redacted, and where, is not protected; nor are labels, and so the domain of a text.",
        "Whole domains are groups of many users: nothing is promised of them. Leak rates are measurements.",
        *OF_UNIT[unit],
        *_of_policy(recipe),
        *pretrain_assumptions(recipe.pretrain),
        "Sampling rate, batch size, steps, the schedule with its seed, clipping norm and the lists of label values are "
        "public, and so is the base model; none was chosen by looking at the corpus.",
        "Steps on redacted copies are not charged to the selective account: they are computed from these copies and "
        "from weights that were released with noise.",
        *_of_central(recipe),
        *of_training(unit, microbatches=recipe.training.microbatches),
        TIMING,
    )


def _noise_of_copies(recipe: DomainPrivateRecipe) -> str:
    return "no noise" if recipe.redacted.central is None else "light noise alone"


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
