"""Commands on recipes and spaces: plan, run, submit, tune, report, schema."""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.cli.options import Overrides, RecipeFile, WorkFolder, central_claim, show_claim, show_files
from rayprivacy.core.console import WholeTable
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import Json, at_home, read_json
from rayprivacy.evaluation.figures import COLUMNS, JSON_FILE, tables
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.registry import method_of, recipe_schema
from rayprivacy.runs.directory import QUESTIONS
from rayprivacy.runs.files import read_mapping
from rayprivacy.runs.method import Card
from rayprivacy.runs.recipe import Recipe

if TYPE_CHECKING:
    from rayprivacy.tuning.outcome import Outcome

MOUNT = "/mnt/rayprivacy"  # of cluster.yaml and deploy/kuberay
_SAID = {
    "submitted": "submitted {id}, which writes {out}",
    "resubmitted": "submitted {id} again: it goes on in {out}, and what was charged is not charged twice",
    "attached": "{id} is on this cluster already, and writes {out}: nothing was submitted",
    "done": "{id} has succeeded: see {out}. To run it anew, which its account pays once only, delete the record with "
    "`ray job delete {id} --address {address}`, and submit it with another --out",
}
_TELLING = ("mauve", "recall", "frechet", "topic_total_variation", "length_total_variation", "words_mean", "perplexity")
_FOLLOW = """follow it:  rayprivacy submit ... --wait   (the same command attaches)
            ray job logs {id} --follow --address {address}
stop it:    ray job stop {id} --address {address}"""

app = typer.Typer()


@app.command()
def plan(
    recipe: RecipeFile,
    override: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Machines like this one that share the work, for times.")] = 1,
    users: Annotated[
        int | None,
        typer.Option(help="About how many users the corpus has: a public guess, for times, advice and remarks."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="What a run may take on two cores, for advice; no bound when left out.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="profile.json of `rayprivacy profile`: bounds and users where nothing else says them."),
    ] = None,
) -> None:
    """Validate a recipe and show its stages, what each costs and about how long it takes; touches no data.

    Below that it says which method and settings the measured frontier suggests for so many users and this epsilon.

    Example: rayprivacy plan recipe.yaml -o privacy.epsilon=8

    Example: rayprivacy plan recipe.yaml --nodes 4 --users 20000 --minutes 60

    Example: rayprivacy plan recipe.yaml --profile runs/profile/profile.json
    """
    settings = api.load_recipe(recipe, override or ())
    api.plan(settings, timed=True, nodes=nodes, users=users, minutes=minutes, profile=profile).show(Console())
    if said := _left_out(settings):
        _say(said)


def _left_out(recipe: Recipe) -> str:
    """Which files of a folder on this machine a run would not read; of a corpus elsewhere a plan says nothing."""
    from rayprivacy.corpus.sources import left_out

    with suppress(RayPrivacyError, OSError):
        if at_home(recipe.corpus.source).is_dir():
            return left_out(recipe.corpus)
    return ""


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
    _summary(result.uri or out, result.certificate, heldout, method_of(settings).card)
    if (result.path / QUESTIONS).is_dir():
        show_files([("questions", f"{(result.uri or out).rstrip('/')}/{QUESTIONS}")])
    if not public and (result.path / JSON_FILE).is_file():
        _compared(read_json(result.path / JSON_FILE))


def _summary(out: str, certificate: Certificate, heldout: Json, card: Card) -> None:
    show_claim(certificate, central_claim(certificate))
    if "perplexity" in heldout:
        Console().print(_perplexities(heldout))
    if "semantic_error_rate" in heldout:
        Console().print(_errors(heldout))
    name = card.texts or card.released_files[0]
    released = ("synthetic text" if card.texts else name.partition(".")[0], name)
    beside = ((Path(each).stem, each) for each in card.beside)
    files = (released, *beside, ("certificate", "certificate.md"), ("report", "report.html"))
    show_files((label, f"{out.rstrip('/')}/{name}") for label, name in files)


def _compared(found: Json) -> None:
    """Whether the text is any good: beside other real users, and by what it is about."""
    console, shown = Console(), {**found, "rows": [row for row in found["rows"] if row["name"] in _TELLING]}
    if not console.is_terminal:  # but a job's log, in which no word of private text may stand
        shown["content_words"] = []
    for title, cells in tables(shown):
        table = WholeTable(*COLUMNS, title=f"{title} (internal: measured on private text)")
        for row in cells:
            table.add_row(*row)
        console.print(table)


def _errors(heldout: Json) -> WholeTable:
    """The rates of a tagger."""
    table = WholeTable("tagger", "semantic error rate", "wrong intents", title="internal: measured on private text")
    for name, rate in heldout["semantic_error_rate"].items():
        table.add_row(name, f"{rate:.1%}", f"{heldout['wrong_intents'][name]:.1%}")
    return table


def _perplexities(heldout: Json) -> WholeTable:
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


@app.command()
def submit(
    recipe: RecipeFile,
    address: Annotated[str, typer.Option(help="URL of the cluster's dashboard, e.g. http://127.0.0.1:8265")],
    override: Overrides = None,
    out: Annotated[
        str | None, typer.Option(help=f"Run directory as all nodes see it, or a URI; {MOUNT}/runs/RELEASE by default.")
    ] = None,
    work: Annotated[
        str | None, typer.Option(help=f"Where all nodes work on a run at a URI; {MOUNT}/runs/RELEASE by default.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show the job's log, and exit with its exit code.")] = False,
    token_file: Annotated[Path | None, typer.Option(help="File (mode 0600) with the cluster's token.")] = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="Directory to ship, less what its .rayignore names: code the image lacks.")
    ] = None,
) -> None:
    """Run a recipe on a Ray cluster; submitting it again is the same release.

    Example: rayprivacy submit recipe.yaml --address http://127.0.0.1:8265 --wait
    """
    from rayprivacy.cluster import job, paths
    from rayprivacy.cluster import submit as jobs  # ray takes seconds to import

    settings = api.load_recipe(recipe, override or ())
    paths.check_homes(read_mapping(recipe, "recipe", override or ()), type(settings))
    paths.check_recipe_paths(settings, working_dir)
    default = f"{MOUNT}/runs/{settings.release_id}"
    place, work = out or default, work or default
    paths.check_out(place, work)
    for warning in paths.warnings_of(settings):
        _say(f"WARNING: {warning}")
    client = jobs.connect(address, token_file)
    sent = job.run_job(settings, place, work)
    found = jobs.submit(client, sent, working_dir)
    _say(_SAID[found.outcome].format(id=sent.id, out=sent.out, address=address))
    if found.outcome == jobs.JobOutcome.DONE:
        return
    if not wait:
        _say(_FOLLOW.format(id=sent.id, address=address))
        return
    code = jobs.follow(client, found, lambda text: typer.echo(text, nl=False))
    if code:
        jobs.failure_of(client, sent.id)
        raise typer.Exit(code)


def _say(text: str) -> None:
    Console(stderr=text.startswith("WARNING")).print(text, markup=False, highlight=False, soft_wrap=True)


@app.command()
def tune(
    space: Annotated[Path, typer.Argument(help="A space file, one of tune_spaces/, for example.")],
    override: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of the search.")] = Path("runs/search"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a search that was stopped.")] = False,
) -> None:
    """Search the keys of a recipe, under one account that pays for the search; or, for free, which questions are kept.

    Example: rayprivacy tune SPACE.yaml --out runs/search -o trials=6
    """
    console = Console()
    found = api.tune(space, override or (), out=out, resume=resume, console=console)
    if isinstance(found, api.Result):
        console.print(f"the winner: {found.path}", highlight=False, soft_wrap=True)
    elif found is None:
        console.print("no trial was drawn, and nothing was released: use the recipe's own defaults.")
    else:
        _show(found, out, console)


def _show(outcome: "Outcome", out: Path, console: Console) -> None:
    table = WholeTable("trial", "state", "utility", "epsilon", "charges", "share of the cap", title="trials")
    for row in outcome.rows:
        utility = "" if row.utility is None else f"{row.utility:.4g}"
        epsilon = "" if row.epsilon is None else f"{row.epsilon:g}"
        share = "" if row.share is None else f"{row.share:.1%}"
        charges = f"{row.charges} of {row.planned}" if row.share is not None else "none"
        table.add_row(str(row.number), row.state, utility, epsilon, charges, share)
    console.print(table)
    if outcome.exhausted:
        console.print(f"the search ended early: {outcome.exhausted}; what follows is the best so far")
    if outcome.spent is not None:
        console.print(f"the account has spent {outcome.spent:.1%} of its cap", highlight=False)
    if outcome.said:
        typer.echo(outcome.said)
    files = (("best recipe", "best.yaml"), ("all trials", "trials.parquet"), ("frontier", "frontier.png"))
    show_files((label, out / name) for label, name in files if (out / name).exists())
