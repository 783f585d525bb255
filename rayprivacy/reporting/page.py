"""One self-contained HTML file per run: the claim first, then how it came about, what it bought, and its limits.

No script, no network, no private text: the page reads the files of `rayprivacy.reporting.inputs` and
`rayprivacy.reporting.samples`, in the internal copy also what an audit and an evaluation left (`attack_figures`),
everything is escaped by the template, and a content security policy forbids the rest.
The same run directory gives the same bytes.
"""

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import OWNER_ONLY, SHARED, write_atomic
from rayprivacy.ledger.certificate import AUDIT_WARNING
from rayprivacy.reporting import attack_figures, claim, data_flow, format
from rayprivacy.reporting.attack_figures import Audit, Evaluation
from rayprivacy.reporting.cards import write_cards
from rayprivacy.reporting.figures import Series, chart_legend, length_histogram, line_chart
from rayprivacy.reporting.inputs import (
    Certificate,
    Exhibits,
    Heldout,
    Metrics,
    Synthetic,
    read_model,
    read_recipe,
)
from rayprivacy.reporting.pictures import PLOTS, run_pictures
from rayprivacy.reporting.recipe_facts import read_facts
from rayprivacy.reporting.render import write_pictures
from rayprivacy.reporting.samples import draw_samples
from rayprivacy.runs.directory import CERTIFICATE, METRICS, RECIPE
from rayprivacy.runs.method import Card


@dataclass(frozen=True)
class View:
    """What a page may show.

    Attributes:
        certificate: what the release claims.
        card: of its method.
        synthetic: figures of the released text; None where none is released.
        heldout: figures measured on held-out text; None where there are none, or they may not be shown.
        timings: seconds by stage; empty on a page to share.
        exhibits: charts and tables of the method, without internal ones on a page to share.
        audit, evaluation: what attacks and a comparison found; None on a page to share.
    """

    certificate: Certificate
    card: Card
    synthetic: Synthetic | None
    heldout: Heldout | None
    timings: dict[str, float]
    exhibits: Exhibits
    audit: Audit | None
    evaluation: Evaluation | None


def write_report(run_dir: Path, *, internal: bool = True) -> Path:
    """Write `run_dir/report.html`, or `report-public.html` when it is not internal, and return its path.

    The cards of what is released are written again as well, and the figures as pictures in `plots`: those of a page to
    share hold nothing internal.

    Args:
        run_dir: a finished run: certificate.json, recipe.yaml, the released text, and metrics.json.
        internal: show figures measured on private text, labelled so; False leaves them and the timings out, for a
            copy that is shared.

    Raises:
        ConfigError: one of the files is missing, or lacks a key; the message names both. Or a page to share is asked
            for, and the run is an audit.
    """
    view = _internal_view(run_dir) if internal else _public_view(run_dir)
    path = run_dir / ("report.html" if internal else "report-public.html")
    write_atomic(path, _page(view, run_dir, internal).encode(), OWNER_ONLY if internal else SHARED)
    write_cards(run_dir)
    metrics = Metrics(synthetic=view.synthetic, heldout=view.heldout, exhibits=view.exhibits)
    pictures = run_pictures(view.certificate, metrics, view.card, view.audit)
    write_pictures(run_dir / PLOTS, [picture for picture in pictures if internal or not picture.internal])
    return path


def environment() -> Environment:
    """Jinja with the page's number formats; everything that is filled in is escaped."""
    templates = PackageLoader("rayprivacy.reporting")
    env = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("number", "figure", "whole", "percent", "duration", "unbroken"):
        env.filters[name] = getattr(format, name)
    return env


def _internal_view(run_dir: Path) -> View:
    certificate, card = _release(run_dir)
    metrics = read_model(run_dir / METRICS, Metrics)
    audit, evaluation = attack_figures.read_audit(run_dir), attack_figures.read_evaluation(run_dir)
    shown = metrics.synthetic, metrics.heldout, metrics.timings_s, metrics.exhibits
    return View(certificate, card, *shown, audit, evaluation)


def _public_view(run_dir: Path) -> View:
    certificate, card = _release(run_dir)
    if AUDIT_WARNING in certificate.warnings:
        raise ConfigError(f"{run_dir} is an {AUDIT_WARNING}: leave --public out, or run the recipe without 'audit'.")
    metrics = read_model(run_dir / METRICS, Metrics)
    heldout = metrics.heldout if metrics.heldout and metrics.heldout.releasable else None
    return View(certificate, card, metrics.synthetic, heldout, {}, metrics.exhibits.shareable(), None, None)


def _release(run_dir: Path) -> tuple[Certificate, Card]:
    certificate = read_model(run_dir / CERTIFICATE, Certificate)
    return certificate, read_facts(run_dir / RECIPE).card


def _page(view: View, run_dir: Path, internal: bool) -> str:
    audit = view.audit
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            certificate=view.certificate,
            claim=claim,
            synthetic=view.synthetic,
            heldout=view.heldout,
            timings=view.timings,
            card=view.card,
            internal=internal,
            figures={
                "across": data_flow.flow_across(view.card),
                "down": data_flow.flow_down(view.card),
                "account": claim.account_bar(view.certificate),
                "roc": attack_figures.roc(audit) if audit and audit.membership else None,
                "exposures": attack_figures.exposures(audit.canaries) if audit and audit.canaries else None,
            },
            audit=audit,
            attack_figures=attack_figures,
            charts=[(chart, line_chart(chart), chart_legend(chart)) for chart in view.exhibits.charts],
            tables=view.exhibits.tables,
            evaluation=view.evaluation,
            histogram=length_histogram(_lengths(view)) if view.synthetic else "",
            samples=draw_samples(run_dir / view.card.texts) if view.card.texts else [],
            recipe=read_recipe(run_dir / RECIPE),
        )
    )


def _lengths(view: View) -> list[Series]:
    series = [Series("bar-synthetic", "synthetic", view.synthetic.words.histogram)] if view.synthetic else []
    if view.heldout and view.heldout.lengths:
        name = "held-out" if view.heldout.releasable else "held-out (internal)"
        series.append(Series("bar-heldout", name, view.heldout.lengths.histogram))
    return series
