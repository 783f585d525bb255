"""The command line. Exit codes: 0 done, 1 failure, 2 bad input, 3 budget refused."""

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import read_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.recipe import Recipe, load_recipe

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__, rich_markup_mode=None)
ledger_app = typer.Typer(no_args_is_help=True, help="Accounts, what they have left, and whether the book is intact.")
epsilon_app = typer.Typer(no_args_is_help=True, help="Calculators: epsilon from noise, or noise from epsilon.")
app.add_typer(ledger_app, name="ledger")
app.add_typer(epsilon_app, name="epsilon")

RecipeFile = Annotated[Path, typer.Argument(help="A recipe, e.g. jobs/seqpate/chat.yaml.")]
Overrides = Annotated[list[str] | None, typer.Option("-o", "--override", help="key=value, e.g. privacy.epsilon=8")]
LedgerUrl = Annotated[str, typer.Option("--ledger", help="SQLAlchemy URL, e.g. sqlite:///ledger.db")]
Delta = Annotated[float, typer.Option(help="delta of the guarantee")]
ACCOUNTED = "accountant: analytic Gaussian (GDP), relation: add-or-remove"


def main() -> None:
    """Run the command line; a wrong input is one sentence, not a traceback."""
    try:
        app()
    except RayPrivacyError as error:
        Console(stderr=True).print(f"rayprivacy: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


@app.command()
def plan(recipe: RecipeFile, override: Overrides = None) -> None:
    """Validate a recipe and show its stages and cost; touches no data.

    Example: rayprivacy plan jobs/seqpate/chat.yaml -o privacy.epsilon=8
    """
    from rayprivacy.methods.seqpate import planned_mechanism  # torch and ray take seconds to import

    settings = load_recipe(recipe, override or ())
    mechanism, privacy = planned_mechanism(settings), settings.privacy
    table = Table("stage", "reads", "cost", title=f"{settings.method}: release {settings.release_id}")
    table.add_row("pseudo-sentences, bases, queries", "public text", "free")
    table.add_row(f"{settings.teachers.count} teachers on shards of {settings.corpus.source}", "private text", "free")
    cost = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}"
    table.add_row(f"votes: {mechanism.queries} queries, {mechanism.candidates} candidates", "teachers", cost)
    table.add_row("student, synthetic text, report", "released votes", "free")
    table.add_row("evaluation (internal)", "held-out private text", "not released")
    console = Console()
    console.print(table)
    share = mechanism.sigma * math.sqrt(2) / mechanism.teachers
    console.print(
        f"noise multiplier {mechanism.sigma:.2f} per query; noise on a mean vote {share:.4f}; unit {privacy.unit}, "
        f"account {privacy.account} of {privacy.ledger}; {ACCOUNTED}",
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
    from rayprivacy.methods.run import Run
    from rayprivacy.methods.seqpate import open_account, run_seqpate
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
def schema() -> None:
    """Print the JSON Schema of recipes, for editors.

    Example: rayprivacy schema > recipe.schema.json
    """
    typer.echo(json.dumps(Recipe.model_json_schema(), indent=2))


@ledger_app.command("create")
def ledger_create(
    ledger: LedgerUrl,
    account: Annotated[str, typer.Option(help="Name of the account: one private corpus.")],
    epsilon: Annotated[float, typer.Option(help="Cap of the account.")],
    delta: Delta = 1e-6,
    unit: Annotated[PrivacyUnit, typer.Option(help="Whose presence is hidden.")] = PrivacyUnit.USER,
) -> None:
    """Open an account with a cap that holds for everything ever released from it.

    Example: rayprivacy ledger create --ledger sqlite:///ledger.db --account chat --epsilon 8
    """
    book = Ledger.open(ledger)
    book.create_account(account, unit, NeighbouringRelation.ADD_OR_REMOVE, Budget(epsilon, delta))
    typer.echo(f"account {account}: epsilon {epsilon:g} at delta {delta:g}, unit {unit}, composition gdp")


@ledger_app.command("show")
def ledger_show(
    ledger: LedgerUrl, account: Annotated[str | None, typer.Option(help="One account; all if left out.")] = None
) -> None:
    """Show what accounts have spent and have left.

    Example: rayprivacy ledger show --ledger sqlite:///ledger.db
    """
    book = _existing(ledger)
    table = Table("account", "unit", "cap (epsilon, delta)", "spent (diagnostic)", "left", "releases")
    for name in [account] if account else [entry.name for entry in book.accounts()]:
        status = book.status(name)
        terms, releases = status.account, {entry.release_id for entry in status.entries if entry.release_id}
        table.add_row(
            name,
            terms.unit,
            f"{terms.epsilon:g}, {terms.delta:g}",
            f"{status.epsilon_spent:.4g}",
            f"{status.epsilon_remaining:.4g}",
            str(len(releases)),
        )
    Console().print(table)


@ledger_app.command("verify")
def ledger_verify(ledger: LedgerUrl) -> None:
    """Replay the book from its rows alone and say whether it is intact.

    Example: rayprivacy ledger verify --ledger sqlite:///ledger.db
    """
    book = _existing(ledger)
    book.verify()
    typer.echo(f"intact; head {book.head()}")


def _existing(url: str) -> Ledger:
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise ConfigError(f"--ledger is {url!r}: there is no such ledger, create one with `rayprivacy ledger create`.")
    return Ledger.open(url)


@epsilon_app.command("gaussian")
def epsilon_gaussian(
    count: Annotated[int, typer.Option(help="How many Gaussian releases.")] = 1,
    sigma: Annotated[float | None, typer.Option(help="Noise std / L2 sensitivity.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Wanted epsilon, instead of sigma.")] = None,
    delta: Delta = 1e-6,
) -> None:
    """Epsilon of Gaussian releases from their noise multiplier, or the multiplier from epsilon.

    Example: rayprivacy epsilon gaussian --count 100 --sigma 10
    """
    if (sigma is None) == (epsilon is None):
        raise ConfigError("give either --sigma or --epsilon, and not both.")
    if epsilon is not None:
        typer.echo(f"sigma = {sigma_for(count, Budget(epsilon, delta)):.6g} for epsilon {epsilon:g}, delta {delta:g}")
    elif sigma is not None and sigma > 0 and count > 0 and math.isfinite(sigma) and 0 < delta < 1:
        typer.echo(f"epsilon = {epsilon_of(math.sqrt(count) / sigma, delta):.6g} at delta {delta:g}")
    else:
        raise ConfigError(f"--sigma is {sigma}, --count {count}, --delta {delta}: all must be positive, delta below 1.")
    typer.echo(f"{count} Gaussian events; {ACCOUNTED}")


@epsilon_app.command("seqpate")
def epsilon_seqpate(
    queries: Annotated[int, typer.Option(help="Queries answered.")],
    teachers: Annotated[int, typer.Option(help="Number of teachers.")],
    epsilon: Annotated[float, typer.Option(help="Wanted epsilon.")] = 3.0,
    delta: Delta = 1e-6,
) -> None:
    """Noise that a SeqPATE release needs, on the sum and on the mean of the votes.

    Example: rayprivacy epsilon seqpate --queries 1000 --teachers 1000 --epsilon 3
    """
    if teachers < 1:
        raise ConfigError(f"--teachers is {teachers}: give at least 1.")
    sigma = sigma_for(queries, Budget(epsilon, delta))
    noise = sigma * math.sqrt(2)
    typer.echo(f"sigma = {sigma:.6g} per query; noise std {noise:.4g} on the sum, {noise / teachers:.4g} on the mean")
    typer.echo(f"{queries} Gaussian events, L2 sensitivity sqrt(2), unit user, no subsampling; {ACCOUNTED}")


if __name__ == "__main__":
    main()
