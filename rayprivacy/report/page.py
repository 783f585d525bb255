"""One self-contained HTML file per run: the claim first, then how it came about, what it bought, and its limits.

No script, no network, no private text: the page reads the four files of `rayprivacy.report.inputs` and
`rayprivacy.report.samples`, in the internal copy also what an audit and an evaluation left (`audited`), everything is
escaped by the template, and a content security policy forbids the rest.
The same run directory gives the same bytes.
"""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import OWNER_ONLY, SHARED, write_atomic
from rayprivacy.ledger.certificate import AUDIT_WARNING
from rayprivacy.report import audited, claim, format, road
from rayprivacy.report.cards import write_cards
from rayprivacy.report.figures import Series, length_histogram
from rayprivacy.report.inputs import Certificate, Heldout, Metrics, read_method, read_model, read_recipe
from rayprivacy.report.pictures import PLOTS, run_pictures
from rayprivacy.report.render import write_pictures
from rayprivacy.report.samples import draw_samples

BASE = {"base": "Base model"}
MODELS = {
    "seqpate": BASE
    | {
        "base_pseudo": "Base model tuned on pseudo-text",
        "student": "Student (this run)",
        "nonprivate": "Trained without privacy",
    },
    "generator": BASE | {"generator": "Generator (this run)"},
}


def write_report(run_dir: Path, *, internal: bool = True) -> Path:
    """Write `run_dir/report.html`, or `report-public.html` when it is not internal, and return its path.

    The cards of what is released are written again as well, and the figures as pictures in `plots`: none that is
    internal on the way out of the house.

    Args:
        run_dir: a finished run: certificate.json, metrics.json, recipe.yaml, synthetic.parquet.
        internal: show figures measured on private text, labelled so; False leaves them and the timings out, for a
            copy that leaves the house.

    Raises:
        ConfigError: one of the four files is missing, or lacks a key; the message names both. Or a page to share is
            asked for, and the run is an audit.
    """
    certificate = read_model(run_dir / "certificate.json", Certificate)
    if AUDIT_WARNING in certificate.warnings and not internal:
        raise ConfigError(f"{run_dir} is an {AUDIT_WARNING}: leave --public out, or run the recipe without 'audit'.")
    metrics = read_model(run_dir / "metrics.json", Metrics)
    heldout = metrics.heldout if metrics.heldout and (internal or metrics.heldout.releasable) else None
    method = read_method(run_dir / "recipe.yaml")
    audit = audited.read_audit(run_dir) if internal else None
    way = road.ROADS[method]
    page = environment().get_template("report.html.j2")
    html = page.render(
        certificate=certificate,
        claim=claim,
        metrics=metrics,
        heldout=heldout,
        internal=internal,
        models=MODELS[method],
        figures={
            "across": road.road_across(way),
            "down": road.road_down(way),
            "account": claim.account_bar(certificate),
            "roc": audited.roc(audit) if audit and audit.membership else None,
            "exposures": audited.exposures(audit.canaries) if audit and audit.canaries else None,
        },
        audit=audit,
        audited=audited,
        evaluation=audited.read_evaluation(run_dir) if internal else None,
        histogram=length_histogram(_lengths(metrics, heldout)),
        samples=draw_samples(run_dir / "synthetic.parquet"),
        recipe=read_recipe(run_dir / "recipe.yaml"),
    )
    path = run_dir / ("report.html" if internal else "report-public.html")
    write_atomic(path, html.encode(), OWNER_ONLY if internal else SHARED)
    write_cards(run_dir)
    shown = metrics.model_copy(update={"heldout": heldout})
    pictures = run_pictures(certificate, shown, way, audit)
    write_pictures(run_dir / PLOTS, [picture for picture in pictures if internal or not picture.internal])
    return path


def environment() -> Environment:
    """Jinja with the page's number formats; everything that is filled in is escaped."""
    templates = PackageLoader("rayprivacy.report")
    env = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("number", "figure", "whole", "percent", "duration", "unbroken"):
        env.filters[name] = getattr(format, name)
    return env


def _lengths(metrics: Metrics, heldout: Heldout | None) -> list[Series]:
    series = [Series("bar-synthetic", "synthetic", metrics.synthetic.words.histogram)]
    if heldout and heldout.lengths:
        name = "held-out" if heldout.releasable else "held-out (internal)"
        series.append(Series("bar-heldout", name, heldout.lengths.histogram))
    return series
