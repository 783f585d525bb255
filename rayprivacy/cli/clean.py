"""The command that deletes what a run computed from private text."""

from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from rayprivacy import api
from rayprivacy.cli.options import WorkFolder

app = typer.Typer()


@app.command()
def clean(
    directory: Annotated[str, typer.Argument(help="A run directory, or the URI of one.")], work: WorkFolder = None
) -> None:
    """Delete what a run computed from private text; keep released text, certificate, report and ledger.

    Example: rayprivacy clean runs/chat
    """
    done = api.clean(directory, work=work)
    lines = [f"deleted {path}" for path in done.deleted]
    lines += [f"left {path}: no run made it" for path in done.left]
    lines += [f"deleted {done.at_uri} private files in {directory}"] if done.at_uri else []
    if done.deleted or not done.at_uri:
        lines.append(f"{decimal(done.freed)} freed" if done.deleted else "nothing to delete")
    Console().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
