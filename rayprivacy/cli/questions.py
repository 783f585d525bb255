"""The command `questions`: questions with answers and evidence, asked about public text."""

from pathlib import Path
from typing import Annotated

import typer

from rayprivacy import api
from rayprivacy.cli.options import Overrides, show_files

app = typer.Typer()


@app.command()
def questions(
    public: Annotated[str, typer.Option(help="Public text: a Parquet, JSONL or CSV file, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the questions.")],
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    document: Annotated[
        str | None, typer.Option(help="Column of the document of a text: sentences are asked of the rest of it.")
    ] = None,
    override: Overrides = None,
    actors: Annotated[int | None, typer.Option(min=1, help="Processes that ask.", show_default="one a core")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish what was begun in the folder.")] = False,
) -> None:
    """Ask questions about text that is declared public; no privacy is claimed.

    Example: rayprivacy questions --public wikitext.parquet --text text --document article --out runs/wiki

    Example: rayprivacy questions --public wikitext.parquet --out runs/wiki -o questions.entities=rules
    """
    found = api.ask_questions(public, out, override or (), text=text, document=document, actors=actors, resume=resume)
    counts = found["counts"]
    typer.echo(f"{counts['kept']:,} questions kept of {counts['questions']:,}, about {counts['passages']:,} passages")
    typer.secho(found["origin"], bold=True)
    show_files([("questions", out / "questions.parquet"), ("card", out / "README.md")])
