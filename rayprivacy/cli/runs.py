"""Commands on recipes: plan, run, report, schema."""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rayprivacy.cli.mirrored import WorkFolder, mirror_of, pull_run
from rayprivacy.cli.options import Overrides, RecipeFile
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import read_json
from rayprivacy.core.mirror import is_uri
from rayprivacy.core.mirror.uris import shown
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.recipes import load_recipe, recipe_schema

app = typer.Typer()


@app.command()
def plan(recipe: RecipeFile, override: Overrides = None) -> None:
    """Validate a recipe and show its stages and cost; touches no data.

    Example: rayprivacy plan jobs/seqpate/chat.yaml -o privacy.epsilon=8
    """
    from rayprivacy.methods.catalogue import method_of  # torch and ray take seconds to import

    settings = load_recipe(recipe, override or ())
    outline = method_of(settings).outline(settings)
    table = Table("stage", "reads", "cost", title=f"{settings.method}: release {settings.release_id}")
    for stage in outline.stages:
        table.add_row(*stage)
    console = Console()
    console.print(table)
    console.print(outline.note, highlight=False)


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

    Example: rayprivacy run jobs/seqpate/chat.yaml --out runs/chat -o privacy.epsilon=8
    """
    from rayprivacy.methods.audited import audit_finished
    from rayprivacy.methods.catalogue import method_of
    from rayprivacy.methods.run import Run
    from rayprivacy.report.page import write_report

    settings = load_recipe(recipe, override or ())
    mirror = mirror_of(out, work, private=mirror_private)
    method = method_of(settings)
    with closing(method.open(settings)) as ledger:
        if ledger.news:
            Console(stderr=True).print(ledger.news, highlight=False, markup=False, soft_wrap=True)
    opened = (
        Run.open_mirrored(mirror, settings, resume=resume) if mirror else Run.open(Path(out), settings, resume=resume)
    )
    certificate = method.run(opened)
    if settings.audit:
        with opened.stage("audit"):
            audit_finished(opened.root, settings.audit.users, settings.audit.shadows, opened.console)
    with opened.stage("report"):
        write_report(opened.root)
    if mirror:
        mirror.publish()
    heldout = {} if public else read_json(opened.root / "metrics.json")["heldout"]
    _summary(mirror.uri if mirror else out, certificate, heldout)


def _summary(out: str, certificate: dict[str, Any], heldout: dict[str, Any]) -> None:
    console = Console()
    for warning in certificate["warnings"]:
        console.print(f"WARNING: {warning}", style="bold red")
    request = certificate["run_request"]
    console.print(
        f"\nepsilon = {request['epsilon']:g}, delta = {request['delta']:g}, unit = {certificate['unit']} "
        f"({certificate['relation']}); account cap: epsilon = {certificate['epsilon']:g}",
        highlight=False,
    )
    if "perplexity" in heldout:
        bleu = heldout.get("bleu", {})
        columns = ("Bleu-3", "Bleu-4") if bleu else ()
        table = Table("model", "held-out perplexity", *columns, title="internal: measured on private text")
        for name, value in heldout["perplexity"].items():
            scores = [bleu.get(name, {}).get(f"bleu{n}", math.nan) for n in (3, 4)] if bleu else []
            table.add_row(name, f"{value:.1f}", *(f"{score:.2f}" for score in scores))
        console.print(table)
    for label, name in (
        ("synthetic text", "synthetic.parquet"),
        ("certificate", "certificate.md"),
        ("report", "report.html"),
    ):
        console.print(f"{label:<16}{out.rstrip('/')}/{name}", highlight=False, soft_wrap=True)


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
    from rayprivacy.report.compare import write_comparison
    from rayprivacy.report.page import write_report

    if len(directories) > 1:
        remote = [directory for directory in directories if is_uri(directory)]
        if remote:
            raise ConfigError(
                f"{shown(remote[0])} is a URI, and a comparison reads local runs: copy the run here first."
            )
        typer.echo(write_comparison([Path(each) for each in directories], out, internal=not public))
        return
    directory = directories[0]
    mirror = mirror_of(directory, work)
    if mirror is None:
        typer.echo(write_report(Path(directory), internal=not public))
        return
    pull_run(mirror)
    written = write_report(mirror.root, internal=not public)
    mirror.push()
    mirror.publish()
    typer.echo(f"{mirror.uri}/{written.name}")


@app.command()
def schema(
    certificate: Annotated[bool, typer.Option("--certificate", help="Of certificates instead.")] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors, or of certificates, for those who read them by machine.

    Example: rayprivacy schema > recipe.schema.json
    """
    shown = Certificate.model_json_schema() if certificate else recipe_schema()
    typer.echo(json.dumps(shown, indent=2))
