"""Command: compare synthetic text with real text."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.core.tables import WholeTable

app = typer.Typer()


@app.command()
def evaluate(
    real: Annotated[str, typer.Option(help="The private texts: a Parquet, JSONL or CSV file, or a folder of them.")],
    synthetic: Annotated[str, typer.Option(help="The synthetic texts.")],
    holdout: Annotated[
        str | None, typer.Option(help="Real texts of users that no model has seen: the control of memorisation.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json and evaluation.md.")] = None,
    text: Annotated[str, typer.Option(help="The column that holds the text, in every file.")] = "text",
    user: Annotated[str | None, typer.Option(help="The column that names the author; 'user' if there is one.")] = None,
    label: Annotated[str | None, typer.Option(help="A column of labels in every file, for a classifier.")] = None,
    tree: Annotated[
        str | None, typer.Option(help="A column of parse trees; in synthetic text it may be called 'parse'.")
    ] = None,
    embedding: Annotated[
        list[str] | None, typer.Option(help="minilm-l6, tfidf, or a base model as in model.base; may be repeated.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="The base model whose perplexity of the texts is measured.")] = None,
    max_texts: Annotated[int, typer.Option(help="Most texts of each file that are compared.")] = 5000,
    max_words: Annotated[int | None, typer.Option(help="The bound on words that the synthetic text had.")] = None,
    seed: Annotated[int, typer.Option(help="Of samples, clusters and intervals; public.")] = 0,
) -> None:
    """Measure how useful synthetic text is, and whether it repeats private text. The figures are internal.

    Example: rayprivacy evaluate --real chats.parquet --synthetic runs/chat/synthetic.parquet --out runs/evaluation
    """
    columns = {"text": text, "user": user, "label": label, "tree": tree}
    given = {**columns, "max_texts": max_texts, "max_words": max_words, "seed": seed}
    models = ({"embeddings": tuple(embedding)} if embedding else {}) | ({"base": base} if base else {})
    console = Console()
    found = api.evaluate(real, synthetic, holdout=holdout, out=out, console=console, **given, **models)
    _show(found, console)
    if out is not None:
        console.print(f"written to {out}", highlight=False, markup=False, soft_wrap=True)


def _show(found: dict[str, Any], console: Console) -> None:
    from rayprivacy.evaluation.summary import COLUMNS, tables

    for title, cells in tables(found):
        table = WholeTable(*COLUMNS, title=title)
        for row in cells:
            table.add_row(*row)
        console.print(table)
    for note in found["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"not releasable: {found['why']}", style="bold", highlight=False, markup=False, soft_wrap=True)
