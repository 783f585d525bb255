"""The command `questions`: questions with answers and evidence, about what a run released or about public text."""

from pathlib import Path
from typing import Annotated

import typer

from rayprivacy import api
from rayprivacy.cli.options import Overrides, show_files
from rayprivacy.runs.directory import QUESTIONS

app = typer.Typer()


@app.command()
def questions(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN_DIR]", help="A finished run, about whose text they are.")
    ] = None,
    public: Annotated[
        str | None, typer.Option(help="Or public text: a Parquet, JSONL or CSV file, or a folder of them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the questions about public text.")] = None,
    text: Annotated[str | None, typer.Option(help="Column of the public text.", show_default="text")] = None,
    document: Annotated[
        str | None, typer.Option(help="Column of the document of a text: sentences are asked of the rest of it.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="A YAML file with the block `questions`.", show_default="the folder's settings")
    ] = None,
    override: Overrides = None,
    actors: Annotated[int | None, typer.Option(min=1, help="Processes that ask.", show_default="one a core")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish what was begun in the folder, with its settings.")
    ] = False,
) -> None:
    """Ask questions about the text of a finished run, under its certificate, or about text that is declared public.

    Example: rayprivacy questions runs/chat

    Example: rayprivacy questions --public wikitext.parquet --text text --document article --out runs/wiki

    Example: rayprivacy questions --public pages.parquet --recipe jobs/question_answering/public.yaml --out runs/pages

    Example: rayprivacy questions runs/chat -o questions.pairs.source=pairs.parquet -o questions.keep.by=roundtrip
    """
    found = api.ask_questions(
        run,
        override or (),
        recipe=recipe,
        public=public,
        out=out,
        text=text,
        document=document,
        actors=actors,
        resume=resume,
    )
    from rayprivacy.reporting.questions_card import funnel, without_retriever

    folder = out or Path(run or "", QUESTIONS)
    typer.echo(funnel(found["counts"]))
    if why := without_retriever(found):
        typer.echo(why)
    typer.secho(found["origin"], bold=True)
    show_files([("questions", folder / "questions.parquet"), ("card", folder / "README.md")])
