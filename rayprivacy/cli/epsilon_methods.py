"""Calculators of methods that count in their own way: eDP-SGD and SanText."""

import math
from typing import Annotated

import typer
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from rayprivacy.accounting import published
from rayprivacy.accounting.calibrate import least_sigma
from rayprivacy.accounting.decay import NoisePerWorker, decayed
from rayprivacy.accounting.figures import Figures, figures
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.metric import MetricLocalDpEvent, document_epsilon
from rayprivacy.cli.epsilon_answer import (
    Answer,
    AsJson,
    AsPublished,
    WantedEpsilon,
    accounted,
    count,
    headline,
    one_of,
    positive,
    proper_delta,
    share,
)
from rayprivacy.cli.options import Delta

RELATION = "add-or-remove"


def epsilon_edpsgd(
    steps: Annotated[int, typer.Option(help="Number of steps.")],
    workers: Annotated[int, typer.Option(help="Public number of workers.")],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches per worker, each clipped and noised alone.")] = 1,
    z0: Annotated[float | None, typer.Option(help="Noise multiplier of the first step, as printed.")] = None,
    epsilon: WantedEpsilon = None,
    decay: Annotated[float, typer.Option(help="Factor from one step's multiplier to the next.")] = 1.0,
    per_worker: Annotated[NoisePerWorker, typer.Option(help="Noise / N per worker, or noise / sqrt(N).")] = "n",
    q: Annotated[float, typer.Option(help="Probability that a user is in a step (Poisson).")] = 1.0,
    delta: Delta = 1e-6,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Epsilon of eDP-SGD with a public schedule z_t = z0 * decay^t, or z0 from epsilon.

    N, the logical number of contributions averaged, is workers * micro-batches.

    Example: rayprivacy epsilon edpsgd --z0 8 --decay 0.999 --steps 100 --workers 4
    """
    given = one_of({"--z0": z0}, epsilon)
    share("--q", q)
    proper_delta(delta)
    logical, levels = count("--workers", workers) * count("--micro-batches", micro_batches), 1024 if q == 1 else 16

    def cost(start: float) -> Figures:
        return _schedule(decayed(start, decay, steps, logical, per_worker, levels), q, delta)

    start = positive("--z0", z0) if epsilon is None else least_sigma(lambda z: cost(z).epsilon, epsilon)
    found, effective = cost(start), decayed(start, decay, steps, logical, per_worker)[0][0]
    divisor = "2 sqrt(N)" if per_worker == "n" else "2"
    paper = [(_step(sigma, q), times) for sigma, times in decayed(2 * start, decay, steps, 1, levels=levels)]
    Answer(
        headline=headline(found.epsilon, delta, None if given else f"z0 = {start:.6g}"),
        epsilon=found.epsilon,
        delta=delta,
        noise={"z0": start, "effective": effective},
        accountants=found.by,
        relation=RELATION,
        unit="user (or record) in one micro-batch",
        assumptions=(
            f"effective multiplier of step 1: z / ({divisor}) = {effective:.6g} with N = {logical};"
            " a clipped mean changes by up to 2C",
            accounted(found.by, RELATION, "user (or record) in one micro-batch"),
            "micro-batches are assigned by a keyed hash into N, and scale factors come from public data",
            *found.notes,
        ),
        published=(published.edpsgd(paper, delta),) if as_published else (),
    ).show(as_published, as_json)


def epsilon_santext(
    tokens: Annotated[int, typer.Option(help="Public bound on the tokens of a document.")],
    diameter: Annotated[float, typer.Option(help="Largest distance in the public vocabulary.")],
    epsilon: Annotated[float | None, typer.Option(help="Epsilon per token and unit of distance.")] = None,
    document_epsilon_wanted: Annotated[
        float | None, typer.Option("--document-epsilon", help="Wanted epsilon of a document, instead.")
    ] = None,
    as_published: AsPublished = False,
    as_json: AsJson = False,
) -> None:
    """Local epsilon of a document under SanText from its epsilon per token, or back.

    Example: rayprivacy epsilon santext --epsilon 2 --tokens 100 --diameter 1.5
    """
    given = one_of({"--epsilon": epsilon}, document_epsilon_wanted)
    length, widest = count("--tokens", tokens), positive("--diameter", diameter)
    if given:
        per_token = positive("--epsilon", epsilon)
    else:
        per_token = math.nextafter(positive("--document-epsilon", document_epsilon_wanted) / length / widest, 0)
    whole = document_epsilon(MetricLocalDpEvent(per_token, widest, length))
    first = f"epsilon = {whole:.6g} per document"
    solved = f"epsilon = {per_token:.6g} per token and unit of distance for {whole:.6g} per document"
    Answer(
        headline=first if given else solved,
        epsilon=whole,
        delta=None,
        noise={"epsilon_per_token": per_token},
        accountants={"metric-local": whole},
        relation="any two documents of the same length",
        unit="document (local model)",
        assumptions=(
            "accountant: tokens * epsilon * diameter, metric local privacy; never added to a central epsilon",
            "vocabulary, embeddings and list of sensitive tokens are public; labels and lengths are not protected",
        ),
        published=(published.santext(per_token),),
    ).show(as_published, as_json)


def _schedule(levels: list[tuple[float, int]], q: float, delta: float) -> Figures:
    if q == 1:
        mu = math.sqrt(math.fsum(times / sigma / sigma for sigma, times in levels))
        return Figures({"gdp": epsilon_of(mu, delta)})
    return figures([(_step(sigma, q), times) for sigma, times in levels], delta)


def _step(sigma: float, q: float) -> DpEvent:
    return GaussianDpEvent(sigma) if q == 1 else PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
