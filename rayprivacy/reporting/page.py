"""One self-contained HTML file for a run, or for several: the claim first, then what it bought, and its limits.

No script, no network, no private text: a page reads the files of `reporting.inputs`, what an audit and an evaluation
left only for the internal copy, everything is escaped by the template, and a content security policy forbids the rest.
The same run directory gives the same bytes.

A page of several runs shows what each claims, what it bought, and where it lies between privacy and utility; a copy to
share has neither perplexities, which are measured on private text, nor the frontier.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import OWNER_ONLY, SHARED, read_json, write_atomic
from rayprivacy.ledger.certificate import AUDIT_WARNING, Certificate
from rayprivacy.reporting import claim, format, inputs, render
from rayprivacy.reporting.cards import write_cards
from rayprivacy.reporting.figures import DOWN, Point, flow, frontier
from rayprivacy.reporting.inputs import read_facts, read_model
from rayprivacy.runs.directory import CERTIFICATE, METRICS, QUESTIONS, RECIPE
from rayprivacy.runs.method import Card
from rayprivacy.runs.questions_plan import STAGES


@dataclass(frozen=True)
class View:
    """What a page may show; `audit` and `evaluation` are None on a page to share, and where there were none."""

    certificate: Certificate
    card: Card
    metrics: inputs.Metrics
    audit: inputs.Audit | None = None
    evaluation: inputs.Evaluation | None = None


def write_report(run_dir: Path, *, internal: bool = True) -> Path:
    """Write `run_dir/report.html` with figures measured on private text, or `report-public.html` without them and
    timings; also cards and, in `plots`, pictures. An error names the file or key that is missing.
    """
    view = _view(run_dir, internal)
    path = run_dir / ("report.html" if internal else "report-public.html")
    pictures = render.run_pictures(view.certificate, view.metrics, view.card, view.audit)
    write_atomic(path, _page(view, run_dir, pictures, internal).encode(), OWNER_ONLY if internal else SHARED)
    write_cards(run_dir)
    _write_questions_card(run_dir / QUESTIONS, view.certificate)
    render.write_pictures(run_dir / render.PLOTS, [picture for picture in pictures if internal or not picture.internal])
    return path


def _write_questions_card(folder: Path, certificate: Certificate) -> None:
    """Write the card of the questions about the text of a run, where they are there and whole."""
    if not ((folder / STAGES).is_file() and "counts" in read_json(folder / STAGES)):
        return
    with suppress(ModuleNotFoundError):  # of the extra `questions`: then the card stays as it is
        from rayprivacy.reporting.questions_card import write_questions_card

        write_questions_card(folder, certificate)


def environment() -> Environment:
    """Jinja with the page's number formats; everything that is filled in is escaped."""
    templates = PackageLoader("rayprivacy.reporting")
    env = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("number", "figure", "whole", "percent", "duration", "unbroken"):
        env.filters[name] = getattr(format, name)
    return env


def _view(run_dir: Path, internal: bool) -> View:
    certificate = read_model(run_dir / CERTIFICATE, Certificate)
    card = read_facts(run_dir / RECIPE).card
    if not internal and AUDIT_WARNING in certificate.warnings:
        raise ConfigError(f"{run_dir} is an {AUDIT_WARNING}: leave --public out, or run the recipe without 'audit'.")
    metrics = read_model(run_dir / METRICS, inputs.Metrics)
    if not internal:
        return View(certificate, card, metrics.shareable())
    audit = inputs.read_if_there(run_dir / "audit.json", inputs.Audit)
    evaluation = inputs.read_if_there(run_dir / "evaluation.json", inputs.Evaluation)
    return View(certificate, card, metrics, audit, evaluation)


def _page(view: View, run_dir: Path, pictures: list[render.Picture], internal: bool) -> str:
    metrics, template = view.metrics, environment().get_template("report.html.j2")
    return template.render(
        certificate=view.certificate,
        claim=claim,
        card=view.card,
        synthetic=metrics.synthetic,
        heldout=metrics.heldout,
        shown=metrics.figures,
        timings=metrics.timings_s,
        charts=metrics.exhibits.charts,
        tables=metrics.exhibits.tables,
        audit=view.audit,
        evaluation=view.evaluation,
        pictures={picture.name: picture for picture in pictures},
        flow_down=flow(view.card, DOWN),
        internal=internal,
        samples=inputs.draw_samples(run_dir / view.card.texts) if view.card.texts else [],
        recipe=inputs.read_recipe(run_dir / RECIPE),
    )


@dataclass(frozen=True)
class Row:
    """One run; `base` and `own` are held-out perplexities, None where they were not measured or may not be shown."""

    name: str
    method: str
    certificate: Certificate
    synthetic: inputs.Synthetic | None
    base: float | None
    own: float | None
    origin: tuple[str, str] = ("", "")  # source and key: the same where two runs read one corpus under one key
    evaluation: inputs.Evaluation | None = None

    def measured(self, name: str) -> float | None:
        """A figure of its text beside private text."""
        rows = self.evaluation.rows if self.evaluation else []
        return next((row.synthetic for row in rows if row.name == name), None)

    def share(self, word: str) -> float | None:
        """The share of its texts that hold a word."""
        words = self.evaluation.content_words if self.evaluation else []
        return next((each.synthetic for each in words if each.word == word), None)

    @staticmethod
    def read(directory: Path, internal: bool) -> "Row":
        """Read a finished run."""
        certificate, facts = read_model(directory / CERTIFICATE, Certificate), read_facts(directory / RECIPE)
        metrics = read_model(directory / METRICS, inputs.Metrics)
        shown = metrics if internal else metrics.shareable()
        figures = shown.heldout.perplexity if shown.heldout else {}
        own, base = figures.get(facts.card.ours), figures.get("base")
        compared = inputs.read_if_there(directory / "evaluation.json", inputs.Evaluation) if internal else None
        origin = facts.corpus.source, facts.privacy.key
        return Row(directory.absolute().name, facts.method, certificate, shown.synthetic, base, own, origin, compared)


def _compared(rows: Sequence[Row]) -> dict[str, dict[str, inputs.Figure | inputs.ContentWord]]:
    """What was measured of the text of two runs or more, figures and words, with the real side of the first of them."""
    found: dict[str, dict[str, inputs.Figure | inputs.ContentWord]] = {"figures": {}, "words": {}}
    for row in rows:
        for figure in row.evaluation.rows if row.evaluation else []:
            if sum(each.measured(figure.name) is not None for each in rows) > 1:
                found["figures"].setdefault(figure.name, figure)
        for word in row.evaluation.content_words if row.evaluation else []:
            if sum(each.share(word.word) is not None for each in rows) > 1:
                found["words"].setdefault(word.word, word)
    return found


def write_comparison(directories: Sequence[Path], path: Path, *, internal: bool = True) -> Path:
    """Write one page about several finished runs, its figure as a picture beside it; private figures if internal."""
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
        one_source=len({row.origin for row in rows}) == 1 and rows[0].origin[0] not in ("", "dataset"),
        compared=_compared(rows),
        protections=len(protections),
        frontier=drawn,
    )
    write_atomic(path, html.encode(), OWNER_ONLY if internal else SHARED)
    render.write_pictures(render.comparison_folder(path), render.comparison_pictures(drawn, points))
    return path
