"""Command: search hyper-parameters."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.cli.options import Overrides, show_files
from rayprivacy.core.tables import WholeTable

if TYPE_CHECKING:
    from rayprivacy.tuning.outcome import Outcome

app = typer.Typer()


@app.command()
def tune(
    space: Annotated[Path, typer.Argument(help="A space file, one of tune_spaces/, for example.")],
    override: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of the search.")] = Path("runs/search"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a search that was stopped.")] = False,
) -> None:
    """Search the keys of a recipe, under one account that pays for the search.

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
    files = (("best recipe", "best.yaml"), ("all trials", "trials.parquet"), ("frontier", "frontier.png"))
    show_files((label, out / name) for label, name in files)
