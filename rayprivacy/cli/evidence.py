"""The command `evidence`: what a finished run can show to those who review it."""

from typing import Annotated

import typer

from rayprivacy import api
from rayprivacy.cli.options import WorkFolder

app = typer.Typer()


@app.command()
def evidence(
    directory: Annotated[str, typer.Argument(help="The directory of a finished run, or the URI of one.")],
    work: WorkFolder = None,
) -> None:
    """Fill the forms that reviewers use from the files of a run: checklist, registry entry, Croissant metadata.

    Example: rayprivacy evidence runs/chat
    """
    typer.echo(api.evidence(directory, work=work))
