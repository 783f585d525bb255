"""The command that deletes what a run computed from private text."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

app = typer.Typer()


@app.command()
def clean(directory: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Delete what a run computed from private text; keep released text, certificate, report and ledger.

    Example: rayprivacy clean runs/chat
    """
    from rayprivacy.methods.clean import clean_run  # torch takes seconds to import

    done = clean_run(directory)
    lines = [f"deleted {path}" for path in done.deleted]
    lines += [f"left {path}: no run made it" for path in done.left]
    lines.append(f"{decimal(done.freed)} freed" if done.deleted else "nothing to delete")
    Console().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
