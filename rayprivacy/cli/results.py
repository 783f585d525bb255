"""Commands on results: attack or clean a finished run compare synthetic with real text."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from rayprivacy import api
from rayprivacy.cli.options import WorkFolder, show_files
from rayprivacy.core.console import WholeTable
from rayprivacy.core.files import Json

app = typer.Typer()


@app.command()
def audit(
    directory: Annotated[str, typer.Argument(help="The directory of a finished run, not yet cleaned.")],
    users: Annotated[
        int, typer.Option(min=1, help="Training users that are attacked, at most, and held-out ones.")
    ] = 400,
    shadows: Annotated[
        int, typer.Option(min=0, help="Shadow models to train first, each as long as the run took; an even number.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of tables.")] = False,
) -> None:
    """Attack a finished run: membership, verbatim overlap, canaries. The figures are internal.

    Example: rayprivacy audit runs/chat

    Example: rayprivacy audit runs/chat --shadows 8
    """
    found = api.audit(directory, users=users, shadows=shadows)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show_attacks(found, Console(), Path(directory))


def _show_attacks(found: Json, console: Console, root: Path) -> None:
    claim, sample = found["claim"], found["sample"]
    people = f"{sample['members']} training and {sample['others']} held-out {claim['unit']}s"
    console.print(_membership(found, f"membership inference, {people}; internal"))
    if found["overlap"]:
        sharing = (
            "synthetic texts that share {words} words in a row with all training users: {training:.1%}; with as many of"
            " them as were held out: {training_as_many_users:.1%}; with held-out users: {heldout:.1%}"
        )
        console.print(sharing.format(**found["overlap"]), highlight=False)
    if found["canaries"]:
        console.print(_canaries(found["canaries"]))
    for name, note in found["notes"].items():
        if found.get(name, True):  # a figure that there is, or what all of them mean
            console.print(f"- {note}", highlight=False)
    style = "bold red" if found["verdict"]["flagged"] else None
    console.print(found["verdict"]["sentence"], highlight=False, style=style)
    show_files([("audit", root / "audit.json")])


def _membership(found: Json, title: str) -> WholeTable:
    table = WholeTable("attack", "AUC (95%)", "false alarms", "hits (95%)", "events admit", "claim admits", title=title)
    for name, attack in found["membership"].items():
        low, high = attack["auc_interval"]
        area = f"{attack['auc']:.3f} ({low:.3f}-{high:.3f})"
        for number, point in enumerate(attack["points"]):
            table.add_row(
                "" if number else name,
                "" if number else area,
                f"{point['false_alarm_rate']:.1%}",
                f"{point['hit_rate']:.1%} ({point['interval'][0]:.1%}-{point['interval'][1]:.1%})",
                _admitted(point["admitted_by_events"]),
                _admitted(point["admitted_by_claim"]),
            )
    return table


def _admitted(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1%}"


def _canaries(figures: list[Json]) -> WholeTable:
    table = WholeTable("secret", "users", "trained", "rank", "exposure", "verbatim", "claim admits", title="canaries")
    for each in figures:
        chance = each["chance_admitted"]
        table.add_row(
            each["kind"],
            str(each["users"]),
            str(each["trained_users"]),
            f"{each['rank']:g} of {each['candidates']}",
            f"{each['exposure']:.1f} bits",
            "yes" if each["verbatim"] else "no",
            "" if chance is None else f"chance {chance:.2g}",
        )
    return table


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


@app.command()
def evaluate(
    real: Annotated[str, typer.Option(help="The private texts: a Parquet, JSONL or CSV file, or a folder of them.")],
    synthetic: Annotated[str, typer.Option(help="The synthetic texts.")],
    holdout: Annotated[
        str | None, typer.Option(help="Real texts of users that no model has seen: the control of memorisation.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json and evaluation.md.")] = None,
    text: Annotated[str, typer.Option(help="The column that holds the text; 'text' in a run's own files.")] = "text",
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
    given = {"text": text, "user": user, "label": label, "tree": tree, "max_texts": max_texts, "max_words": max_words}
    models = ({"embeddings": tuple(embedding)} if embedding else {}) | ({"base": base} if base else {})
    console = Console()
    found = api.evaluate(real, synthetic, holdout=holdout, out=out, console=console, seed=seed, **given, **models)
    _show_figures(found, console)
    if out is not None:
        console.print(f"written to {out}", highlight=False, markup=False, soft_wrap=True)


def _show_figures(found: Json, console: Console) -> None:
    from rayprivacy.evaluation.figures import COLUMNS, tables

    for title, cells in tables(found):
        table = WholeTable(*COLUMNS, title=title)
        for row in cells:
            table.add_row(*row)
        console.print(table)
    for note in found["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"not releasable: {found['why']}", style="bold", highlight=False, markup=False, soft_wrap=True)
