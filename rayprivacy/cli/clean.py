"""The command that deletes what a run computed from private text."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from rayprivacy.cli.mirrored import WorkFolder, mirror_of, pull_run
from rayprivacy.core.files import private_directory

app = typer.Typer()


@app.command()
def clean(
    directory: Annotated[str, typer.Argument(help="A run directory, or the URI of one.")], work: WorkFolder = None
) -> None:
    """Delete what a run computed from private text; keep released text, certificate, report and ledger.

    Example: rayprivacy clean runs/chat
    """
    from rayprivacy.methods.clean import clean_run  # torch takes seconds to import

    mirror = mirror_of(directory, work)
    if mirror:
        pull_run(mirror)
        private_directory(mirror.root / "private")  # a folder that was pulled without has none
    done = clean_run(mirror.root if mirror else Path(directory))
    gone = mirror.forget_private() if mirror else 0
    lines = [f"deleted {path}" for path in done.deleted]
    lines += [f"left {path}: no run made it" for path in done.left]
    lines += [f"deleted {gone} private files in {mirror.uri}"] if mirror and gone else []
    if done.deleted or not gone:
        lines.append(f"{decimal(done.freed)} freed" if done.deleted else "nothing to delete")
    Console().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
