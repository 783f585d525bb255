"""The figures of a page: which there are, which of them are internal, and where their files go.

A run keeps the files in `plots`; a comparison in a folder beside the page that is named after it, because several pages
may lie in one folder.
"""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rayprivacy.ledger.certificate import Certificate
from rayprivacy.reporting import attack_figures, claim
from rayprivacy.reporting.data_flow import ACROSS, flow
from rayprivacy.reporting.figures import Point, Series, chart_legend, length_histogram, line_chart, unbeaten
from rayprivacy.reporting.inputs import Audit, Heldout, Metrics, Synthetic
from rayprivacy.reporting.render import Picture
from rayprivacy.runs.method import Card

PLOTS = "plots"


def run_pictures(certificate: Certificate, metrics: Metrics, card: Card, audit: Audit | None) -> list[Picture]:
    """The figures of one run; of a page to share, `audit` is None and `metrics` only what is shareable."""
    parts = [(part.css, f"{part.name}: epsilon {part.shown}") for part in claim.account_parts(certificate)]
    pictures = [Picture("flow", flow(card, ACROSS)), Picture("account", claim.account_bar(certificate), parts)]
    if metrics.synthetic:
        pictures += _of_text(metrics.synthetic, metrics.heldout)
    for chart in metrics.exhibits.charts:
        pictures.append(Picture(chart.name, line_chart(chart), chart_legend(chart), internal=chart.internal))
    if audit and audit.membership:
        pictures.append(Picture("roc", attack_figures.roc(audit), attack_figures.roc_legend(audit), internal=True))
    if audit and audit.canaries:
        drawn = attack_figures.exposures(audit.canaries)
        pictures.append(Picture("exposure", drawn, attack_figures.EXPOSURE_LEGEND, internal=True))
    return pictures


def _of_text(synthetic: Synthetic, heldout: Heldout | None) -> list[Picture]:
    """Lengths of synthetic texts, and of held-out ones beside them."""
    own = [Series("bar-synthetic", "synthetic", synthetic.words.histogram)]
    pictures = [_lengths(own, not synthetic.releasable)]
    if heldout and heldout.lengths:
        name = "held-out" if heldout.releasable else "held-out (internal)"
        both = [*own, Series("bar-heldout", name, heldout.lengths.histogram)]
        pictures.append(_lengths(both, not (heldout.releasable and synthetic.releasable), "lengths-heldout"))
    return pictures


def _lengths(series: Sequence[Series], internal: bool, name: str = "lengths") -> Picture:
    return Picture(name, length_histogram(series), [(one.css, one.name) for one in series], internal)


def comparison_pictures(frontier: Markup | None, points: Sequence[Point]) -> list[Picture]:
    """The frontier of several runs, where there is one; perplexity is measured on private text."""
    if frontier is None:
        return []
    best = unbeaten(points)
    legend = [
        (f"dot{' best' * (point in best)}", f"{point.name}: epsilon {point.across:.4g}, perplexity {point.up:.2f}")
        for point in points
    ]
    return [Picture("frontier", frontier, legend, internal=True)]


def comparison_folder(page: Path) -> Path:
    """Where the pictures of a comparison go.

    >>> comparison_folder(Path("runs/comparison.html")).as_posix()
    'runs/comparison-plots'
    """
    return page.with_name(f"{page.stem}-{PLOTS}")
