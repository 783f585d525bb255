"""What a recipe of the generator will charge: the label histogram, and the steps with the least noise that fits."""

from functools import lru_cache

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.core.units import Budget
from rayprivacy.generation.codes import Codes
from rayprivacy.ledger.filters.noise import least_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.account import open_account
from rayprivacy.methods.comparison import comparison_stages
from rayprivacy.methods.generator_recipe import GeneratorRecipe
from rayprivacy.methods.outline import Outline
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.release.steps import SampledGaussian


def planned_histogram(recipe: GeneratorRecipe) -> HistogramMechanism | None:
    """The release of the shares of the control codes; None where there are no codes, or all are equal."""
    if not recipe.has_histogram:
        return None
    cells = Codes(recipe.codes, recipe.corpus.labels).cells
    return HistogramMechanism(cells=cells, sigma=recipe.codes.noise_multiplier, unit=recipe.privacy.unit)


def planned_steps(recipe: GeneratorRecipe) -> SampledGaussian:
    """The steps: with the recipe's noise multiplier, or the least that fits the budget beside the histogram.

    Raises:
        ConfigError: no noise is enough.
    """
    training, privacy, histogram = recipe.training, recipe.privacy, planned_histogram(recipe)
    noise = training.noise_multiplier or _least_noise(
        training.sampling_rate,
        training.steps,
        histogram.event if histogram else None,
        privacy.budget,
        privacy.composition,
    )
    return SampledGaussian(training.sampling_rate, noise, training.clipping_norm, training.steps, privacy.unit)


@lru_cache(maxsize=64)
def _least_noise(q: float, steps: int, before: DpEvent | None, budget: Budget, composition: str) -> float:
    def event(sigma: float) -> DpEvent:
        of_steps = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)
        return ComposedDpEvent([before, of_steps]) if before else of_steps

    return least_noise(event, budget, composition)


def planned_events(recipe: GeneratorRecipe) -> list[DpEvent]:
    """The charges of a run."""
    histogram = planned_histogram(recipe)
    return [*([histogram.event] if histogram else []), planned_steps(recipe).event]


def chunk_events(recipe: GeneratorRecipe) -> list[DpEvent]:
    """The charges of a run as they are made: the histogram's, and one for each chunk of steps."""
    histogram, steps, chunk = planned_histogram(recipe), planned_steps(recipe), recipe.training.chunk
    chunks = [steps.event_of(min(chunk, steps.steps - chunk * number)) for number in range(chunks_of(recipe))]
    return [*([histogram.event] if histogram else []), *chunks]


def chunks_of(recipe: GeneratorRecipe) -> int:
    """In how many chunks the steps are charged."""
    return -(-recipe.training.steps // recipe.training.chunk)


def open_generator(recipe: GeneratorRecipe, expected_head: str | None = None) -> Ledger:
    """Open the ledger for a recipe, before any work.

    Raises:
        RayPrivacyError: as `open_account`.
    """
    return open_account(recipe, planned_events(recipe), planned_steps(recipe).protection, expected_head)


def outline_generator(recipe: GeneratorRecipe) -> Outline:
    """Stages and cost of a recipe."""
    steps, privacy, codes = planned_steps(recipe), recipe.privacy, Codes(recipe.codes, recipe.corpus.labels)
    histogram = planned_histogram(recipe)
    cost = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}" + (", with the histogram" if histogram else "")
    training = f"{steps.steps} steps of DP-SGD on {recipe.corpus.source}, {recipe.adapter.kind}"
    labels = (
        f"shares of {codes.cells} control codes",
        "labels of private text" if histogram else "nothing: all are equal",
        f"one Gaussian release of multiplier {histogram.sigma:g}" if histogram else "free",
    )
    return Outline(
        (
            labels,
            (training, "private text", cost),
            (f"{recipe.generation.texts} synthetic texts, report", "the model", "free"),
            ("evaluation (internal)", "held-out private text", "not released"),
            *comparison_stages(recipe),
        ),
        f"noise multiplier {steps.noise_multiplier:.4g} on clipping norm {steps.clipping_norm:g}, sampling rate "
        f"{steps.sampling_rate:g} per {privacy.unit} (Poisson); noise on a mean gradient "
        f"{steps.noise_std / recipe.training.expected_batch:.3g} per coordinate; account {privacy.account} of "
        f"{privacy.ledger}; accountant: {privacy.composition}, relation: add-or-remove",
    )
