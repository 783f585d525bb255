"""Commands on recipes: plan, run, report, schema."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.cli.options import Overrides, RecipeFile, WorkFolder, show_claim, show_files
from rayprivacy.core.tables import WholeTable
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.registry import method_of, recipe_schema

app = typer.Typer()


@app.command()
def plan(
    recipe: RecipeFile,
    override: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Machines like this one that share the work, for times.")] = 1,
    users: Annotated[
        int | None,
        typer.Option(help="About how many users the corpus has: a public guess, for times and advice alone."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="What a run may take on two cores, for advice; no bound when left out.")
    ] = None,
) -> None:
    """Validate a recipe and show its stages, what each costs and about how long it takes; touches no data.

    Below that it says which method and settings the measured frontier suggests for so many users and this epsilon.

    Example: rayprivacy plan recipe.yaml -o privacy.epsilon=8

    Example: rayprivacy plan recipe.yaml --nodes 4 --users 20000 --minutes 60
    """
    settings = api.load_recipe(recipe, override or ())
    api.plan(settings, timed=True, nodes=nodes, users=users, minutes=minutes).show(Console())


@app.command()
def run(
    recipe: RecipeFile,
    override: Overrides = None,
    out: Annotated[str, typer.Option(help="Run directory: a path, or a URI such as s3://bucket/run.")] = "runs/latest",
    resume: Annotated[bool, typer.Option("--resume", help="Finish a run that was killed.")] = False,
    work: WorkFolder = None,
    mirror_private: Annotated[
        bool, typer.Option("--mirror-private", help="Copy private files to the URI too: shards, features, teachers.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Print no figure measured on private text: a job's log has many readers.")
    ] = False,
) -> None:
    """Run a recipe: private text in, synthetic text, certificate and report out.

    Example: rayprivacy run recipe.yaml --out runs/chat -o privacy.epsilon=8
    """
    settings = api.load_recipe(recipe, override or ())
    result = api.run(settings, out, resume=resume, work=work, mirror_private=mirror_private)
    heldout = {} if public else result.metrics["heldout"]
    _summary(result.uri or out, result.certificate, heldout, method_of(settings).card.texts)


def _summary(out: str, certificate: Certificate, heldout: dict[str, Any], texts: str) -> None:
    request = certificate.run_request
    show_claim(
        certificate,
        f"\n{certificate.kind}: epsilon = {request.epsilon:g}, delta = {request.delta:g}, unit = {certificate.unit} "
        f"({certificate.relation}); account cap: epsilon = {certificate.epsilon:g}",
    )
    if "perplexity" in heldout:
        Console().print(_perplexities(heldout))
    released = ("synthetic text", texts) if texts else ("model", "model")
    files = (released, ("certificate", "certificate.md"), ("report", "report.html"))
    show_files((label, f"{out.rstrip('/')}/{name}") for label, name in files)


def _perplexities(heldout: dict[str, Any]) -> WholeTable:
    bleu, intervals = heldout.get("bleu", {}), heldout.get("perplexity_interval", {})
    columns = (*(("95%",) if intervals else ()), *(("Bleu-3", "Bleu-4") if bleu else ()))
    table = WholeTable("model", "held-out perplexity", *columns, title="internal: measured on private text")
    for name, value in heldout["perplexity"].items():
        interval = ["{:.1f} to {:.1f}".format(*intervals[name])] if name in intervals else []
        scores = [bleu.get(name, {}).get(f"bleu{n}", math.nan) for n in (3, 4)] if bleu else []
        table.add_row(name, f"{value:.1f}", *interval, *(f"{score:.2f}" for score in scores))
    return table


@app.command()
def report(
    directories: Annotated[
        list[str], typer.Argument(help="A run directory, or the URI of one; or several to compare.")
    ],
    public: Annotated[bool, typer.Option("--public", help="Leave out everything measured on private text.")] = False,
    out: Annotated[Path, typer.Option(help="The page of a comparison.")] = Path("comparison.html"),
    work: WorkFolder = None,
) -> None:
    """Write report.html again, for inside (default) or to share; or compare several runs on one page.

    Example: rayprivacy report runs/chat --public

    Example: rayprivacy report runs/epsilon-1 runs/epsilon-3 runs/epsilon-8 --out comparison.html
    """
    typer.echo(api.report(*directories, public=public, out=out, work=work))


@app.command()
def schema(
    certificate: Annotated[bool, typer.Option("--certificate", help="Of certificates instead.")] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors, or of certificates, for those who read them by machine.

    Example: rayprivacy schema > recipe.schema.json
    """
    shown = Certificate.model_json_schema() if certificate else recipe_schema()
    typer.echo(json.dumps(shown, indent=2))
