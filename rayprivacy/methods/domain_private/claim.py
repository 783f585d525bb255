"""What domain-private training claims, and of which accounts, in words and figures."""

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import leaves
from rayprivacy.blocks.steps_plan import sampled_steps
from rayprivacy.core.units import Protection
from rayprivacy.dpsgd.settings import NoiseScheduleConfig
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.plan import SecondAccount


def second_account(recipe: DomainPrivateRecipe, steps: NoisySteps) -> SecondAccount | None:
    """The plain account that pays for all steps besides."""
    budget, central = recipe.central_budget, recipe.redacted.central
    if budget is None or central is None:
        return None
    return SecondAccount(central.account, budget, Protection(steps.unit), steps.central_event_of(range(steps.steps)))


def figures_of(
    recipe: DomainPrivateRecipe, mechanism: NoisySteps, second: SecondAccount | None, published: dict[str, float]
) -> dict[str, str]:
    """What people should read first, but the policy."""
    noisy = mechanism.steps - sum(mechanism.redacted)
    return {
        "Noisy steps": f"{noisy} of {mechanism.steps}",
        **_levels(mechanism),
        "For plain differential privacy": _for_users(mechanism, second, recipe.privacy.composition),
        "As published": ", ".join(f"{name}: {value:.4g}" for name, value in published.items()),
    }


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


def as_published(recipe: DomainPrivateRecipe, noisy: int) -> dict[str, float]:
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


def assumptions_of(recipe: DomainPrivateRecipe, policy: str) -> tuple[Placed, ...]:
    """The sentences of the method, whose account names its `policy`."""
    return (
        *at(
            Where.CLAIM,
            f"Protected is what the public policy '{policy}' hides, and nothing else. What it does not find (a name, a "
            f"number in an odd format) is trained on with {_noise_of_copies(recipe)}, and may come out word for word.",
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
