"""Commands on results: attack or clean a finished run, compare synthetic with real text, sanitise one file."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from rayprivacy import api
from rayprivacy.cli.options import WorkFolder, show_claim, show_files
from rayprivacy.core.console import WholeTable
from rayprivacy.core.errors import ConfigError
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
    for note in found["notes"].values():
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


@app.command()
def sanitize(
    source: Annotated[Path, typer.Argument(help="A Parquet, JSONL or CSV file.")],
    out: Annotated[Path, typer.Argument(help="The sanitised Parquet file; its run directory is OUT.run.")],
    epsilon: Annotated[float | None, typer.Option(help="Cap of all words of a user together.")] = None,
    keep: Annotated[
        float | None, typer.Option(help="Share of words that stay as they are, in place of --epsilon.")
    ] = None,
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    user: Annotated[str, typer.Option(help="Column that names the author.")] = "user",
    label: Annotated[
        list[str] | None, typer.Option(help="Column that is copied, unprotected; may be repeated.")
    ] = None,
    max_records: Annotated[int, typer.Option(help="Most records of a user.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Most words of a text; longer ones are cut.")] = 64,
    words: Annotated[int, typer.Option(help="Most frequent words of English that are told apart.")] = 30_000,
    plus: Annotated[bool, typer.Option("--plus", help="SanText+: protect the less frequent words alone.")] = False,
    account: Annotated[str, typer.Option(help="Account that pays: one private corpus.")] = "sanitize",
    ledger: Annotated[str, typer.Option(help="URL of the ledger.")] = "sqlite:///ledger.db",
    key: Annotated[str, typer.Option(help="Key file, made when it is not there.")] = "rayprivacy.key",
) -> None:
    """Sanitise the words of one file (SanText), with a certificate beside it.

    Example: rayprivacy sanitize queries.csv sanitized.parquet --keep 0.5

    Example: rayprivacy sanitize queries.csv sanitized.parquet --epsilon 400 --max-records 2 --plus
    """
    if out.resolve() == source.resolve():
        raise ConfigError(f"the sanitised copy is to be written to {out}, over the source: name another file.")
    if (epsilon is None) == (keep is None):
        raise ConfigError("give --epsilon, the cap of a user's words, or --keep, the share of words that stay.")
    columns = {"text": text, "user": user, "labels": label or [], "max_records_per_user": max_records}
    data: Json = {
        "method": "santext",
        "corpus": {"source": str(source), **columns},
        "privacy": {"account": account, "ledger": ledger, "key": key, "epsilon": 1e9 if epsilon is None else epsilon},
        "sanitize": {"words": words, "keep": keep, "max_tokens": max_tokens, "plus": {} if plus else None},
    }
    if keep is not None:  # it costs what it costs
        data["privacy"]["epsilon"] = float(f"{api.plan(api.load_recipe(data)).epsilon * 1.0001:.5g}")
    result = api.run(api.load_recipe(data), out.with_name(f"{out.name}.run"), resume=True)
    show_claim(result.certificate)
    out.write_bytes((result.path / "sanitized.parquet").read_bytes())
    show_files([("sanitised text", out), ("certificate", result.path / "certificate.md")])
