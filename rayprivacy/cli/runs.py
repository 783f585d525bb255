"""Commands on recipes: plan, run, report, schema."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rayprivacy.cli.options import ACCOUNTED, Overrides, RecipeFile
from rayprivacy.core.files import read_json
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.recipe import Recipe, load_recipe

app = typer.Typer()


@app.command()
def plan(recipe: RecipeFile, override: Overrides = None) -> None:
    """Validate a recipe and show its stages and cost; touches no data.

    Example: rayprivacy plan jobs/seqpate/chat.yaml -o privacy.epsilon=8
    """
    from rayprivacy.methods.planning import planned_mechanism  # torch and ray take seconds to import
    from rayprivacy.release.planning import noise_on_mean

    settings = load_recipe(recipe, override or ())
    mechanism, privacy = planned_mechanism(settings), settings.privacy
    table = Table("stage", "reads", "cost", title=f"{settings.method}: release {settings.release_id}")
    table.add_row("pseudo-sentences, bases, queries", "public text", "free")
    table.add_row(f"{settings.teachers.count} teachers on shards of {settings.corpus.source}", "private text", "free")
    cost = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}"
    table.add_row(f"votes: {mechanism.queries} queries, {mechanism.candidates} candidates", "teachers", cost)
    table.add_row("student, synthetic text, report", "released votes", "free")
    table.add_row("evaluation (internal)", "held-out private text", "not released")
    how = "plain" if mechanism.clip is None else f"centred and clipped to {mechanism.clip:g}"
    console = Console()
    console.print(table)
    console.print(
        f"noise multiplier {mechanism.sigma:.2f} per query; votes {how}, noise on a mean vote "
        f"{noise_on_mean(mechanism):.4f}; unit {privacy.unit}, account {privacy.account} of {privacy.ledger}; "
        f"{ACCOUNTED}",
        highlight=False,
    )


@app.command()
def run(
    recipe: RecipeFile,
    override: Overrides = None,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/latest"),
    resume: Annotated[bool, typer.Option("--resume", help="Finish a run that was killed.")] = False,
) -> None:
    """Run a recipe: private text in, synthetic text, certificate and report out.

    Example: rayprivacy run jobs/seqpate/chat.yaml --out runs/chat -o privacy.epsilon=8
    """
    from rayprivacy.methods.planning import open_account
    from rayprivacy.methods.run import Run
    from rayprivacy.methods.seqpate import run_seqpate
    from rayprivacy.report.page import write_report

    settings = load_recipe(recipe, override or ())
    open_account(settings).close()
    work = Run.open(out, settings, resume=resume)
    certificate = run_seqpate(work)
    with work.stage("report"):
        write_report(work.root)
    _summary(out, certificate, read_json(work.root / "metrics.json"))


def _summary(out: Path, certificate: dict[str, Any], metrics: dict[str, Any]) -> None:
    console = Console()
    for warning in certificate["warnings"]:
        console.print(f"WARNING: {warning}", style="bold red")
    request, heldout = certificate["run_request"], metrics["heldout"]
    console.print(
        f"\nepsilon = {request['epsilon']:g}, delta = {request['delta']:g}, unit = {certificate['unit']} "
        f"({certificate['relation']}); account cap: epsilon = {certificate['epsilon']:g}",
        highlight=False,
    )
    if "perplexity" in heldout:
        table = Table("model", "held-out perplexity", "Bleu-3", "Bleu-4", title="internal: measured on private text")
        for name, value in heldout["perplexity"].items():
            scores = heldout["bleu"].get(name, {})
            table.add_row(name, f"{value:.1f}", *(f"{scores.get(f'bleu{n}', math.nan):.2f}" for n in (3, 4)))
        console.print(table)
    for label, name in (
        ("synthetic text", "synthetic.parquet"),
        ("certificate", "certificate.md"),
        ("report", "report.html"),
    ):
        console.print(f"{label:<16}{out / name}", highlight=False, soft_wrap=True)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    public: Annotated[bool, typer.Option("--public", help="Leave out everything measured on private text.")] = False,
) -> None:
    """Write report.html again, for inside (default) or to share.

    Example: rayprivacy report runs/chat --public
    """
    from rayprivacy.report.page import write_report

    typer.echo(write_report(directory, internal=not public))


@app.command()
def schema(
    certificate: Annotated[bool, typer.Option("--certificate", help="Of certificates instead.")] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors, or of certificates, for those who read them by machine.

    Example: rayprivacy schema > recipe.schema.json
    """
    model = Certificate if certificate else Recipe
    typer.echo(json.dumps(model.model_json_schema(), indent=2))
