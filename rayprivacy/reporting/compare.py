"""Several runs on one page: what each claims, what it bought, and where it lies between privacy and utility.

The page reads the same files as the report of one run, and no others. Perplexity is measured on private text, so a copy
to share has neither that column nor the frontier. Runs of different corpora stand side by side, but their perplexities
say nothing about each other: the page says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import OWNER_ONLY, SHARED, write_atomic
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.reporting import claim
from rayprivacy.reporting.figures import Point, frontier
from rayprivacy.reporting.inputs import Metrics, Synthetic, read_model
from rayprivacy.reporting.page import environment
from rayprivacy.reporting.pictures import comparison_folder, comparison_pictures
from rayprivacy.reporting.recipe_facts import read_facts
from rayprivacy.reporting.render import write_pictures
from rayprivacy.runs.directory import CERTIFICATE, METRICS, RECIPE


@dataclass(frozen=True)
class Row:
    """One run; `base` and `own` are held-out perplexities, None where they were not measured or may not be shown."""

    name: str
    method: str
    certificate: Certificate
    synthetic: Synthetic | None
    base: float | None
    own: float | None

    @staticmethod
    def read(directory: Path, internal: bool) -> "Row":
        """Read a finished run."""
        certificate, facts = read_model(directory / CERTIFICATE, Certificate), read_facts(directory / RECIPE)
        metrics = read_model(directory / METRICS, Metrics)
        shown = metrics if internal else metrics.shareable()
        figures = shown.heldout.perplexity if shown.heldout else {}
        own, base = figures.get(facts.card.ours), figures.get("base")
        return Row(directory.absolute().name, facts.method, certificate, shown.synthetic, base, own)


def write_comparison(directories: Sequence[Path], path: Path, *, internal: bool = True) -> Path:
    """Write one offline page about several finished runs, and return its path; its figure also as a picture beside it.

    Figures measured on private text are shown, labelled so, only on an internal page.
    """
    if len(directories) < 2:
        raise ConfigError(f"a comparison of {len(directories)} runs: give two run directories or more.")
    rows = [Row.read(directory, internal) for directory in directories]
    points = [Point(row.name, row.certificate.run_request.epsilon, row.own) for row in rows if row.own is not None]
    protections = {(row.certificate.kind, row.certificate.unit, row.certificate.relation) for row in rows}
    alike = len(protections) == 1 and len(points) > 1  # a line through epsilons that mean different things says nothing
    drawn = frontier(points, "epsilon of the run's request", "perplexity on held-out text") if alike else None
    page = environment().get_template("compare.html.j2")
    html = page.render(
        rows=rows,
        claim=claim,
        internal=internal and any(row.own is not None for row in rows),
        corpora=len({row.certificate.corpus_digest for row in rows}),
        protections=len(protections),
        frontier=drawn,
    )
    write_atomic(path, html.encode(), OWNER_ONLY if internal else SHARED)
    write_pictures(comparison_folder(path), comparison_pictures(drawn, points))
    return path
