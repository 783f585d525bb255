"""The command `sanitize`: one file in, its sanitised copy out, in the words of its own options."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rayprivacy import api
from rayprivacy.cli.options import show_claim, show_files
from rayprivacy.core.errors import ConfigError, CorpusError, RayPrivacyError
from rayprivacy.core.files import Json

app = typer.Typer()
FORMATS = (".parquet", ".jsonl", ".csv")
_RECORDS = 8  # of a user at most, unless the command says otherwise
_OPTIONS = {  # a key of the recipe that is made of the options, and what it is called here
    "corpus.source": "SOURCE",
    "corpus.text": "--text",
    "corpus.user": "--user",
    "corpus.labels": "--label",
    "corpus.max_records_per_user": "--max-records",
    "privacy.epsilon": "--epsilon",
    "privacy.account": "--account",
    "privacy.ledger": "--ledger",
    "privacy.key": "--key",
    "sanitize.max_tokens": "--max-tokens",
    "sanitize.words": "--words",
    "sanitize.keep": "--keep",
    "sanitize.plus": "--plus",
}


@app.command()
def sanitize(
    source: Annotated[Path, typer.Argument(help="A Parquet, JSONL or CSV file.")],
    out: Annotated[Path, typer.Argument(help="The copy: .parquet, .jsonl or .csv. Its run directory is OUT.run.")],
    epsilon: Annotated[float | None, typer.Option(help="Cap of all words of a user, or row, together.")] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            help="In place of --epsilon: how often a word of the list stays, median over the list. Frequent words stay"
            " less often, so a text keeps fewer."
        ),
    ] = None,
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    user: Annotated[str | None, typer.Option(help="Column that names the author.", show_default="user")] = None,
    each_row: Annotated[bool, typer.Option("--each-row", help="No column names authors: a row is its own.")] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="Column that is copied, unprotected; may be repeated.")
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(help="Most rows of a user, which each add to epsilon; others are left out.", show_default="8"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most words of a text; longer ones are cut.")] = 64,
    words: Annotated[int, typer.Option(help="Most frequent words of English that are told apart.")] = 30_000,
    plus: Annotated[bool, typer.Option("--plus", help="SanText+: protect the less frequent words alone.")] = False,
    account: Annotated[str, typer.Option(help="Account that pays: one private corpus.")] = "sanitize",
    ledger: Annotated[str, typer.Option(help="URL of the ledger.")] = "sqlite:///ledger.db",
    key: Annotated[str, typer.Option(help="Key file, made when it is not there.")] = "rayprivacy.key",
) -> None:
    """Sanitise the words of one file (SanText), with a certificate beside it.

    Example: rayprivacy sanitize queries.csv sanitized.parquet --keep 0.5

    Example: rayprivacy sanitize lines.csv sanitized.csv --epsilon 400 --each-row --plus
    """
    if out.resolve() == source.resolve():
        raise ConfigError(f"the sanitised copy is to be written to {out}, over the source: name another file.")
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"the sanitised copy is to be written to {out}: name a file {', '.join(FORMATS)}.")
    if text == "document":
        raise ConfigError("--text is 'document', which the copy calls the names of its rows: rename the column.")
    if (epsilon is None) == (keep is None):
        raise ConfigError("give --epsilon, the cap of a user's words, or --keep, how often a word stays.")
    if each_row and (user is not None or max_records is not None):
        raise ConfigError("--each-row says that no rows share a user: leave out --user and --max-records.")
    data: Json = {
        "method": "santext",
        "corpus": {
            "source": str(source),
            "text": text,
            "user": None if each_row else user or "user",
            "labels": label or [],
            "max_records_per_user": None if each_row else _RECORDS if max_records is None else max_records,
        },
        "privacy": {"account": account, "ledger": ledger, "key": key, "unit": "record" if each_row else "user"},
        "sanitize": {"words": words, "keep": keep, "max_tokens": max_tokens, "plus": {} if plus else None},
    }
    data["privacy"]["epsilon"] = 1e9 if epsilon is None else epsilon
    with _in_options():
        _check_columns(data)
        if keep is not None:  # it costs what it costs
            data["privacy"]["epsilon"] = float(f"{api.plan(api.load_recipe(data)).epsilon * 1.0001:.5g}")
        _say_epsilon(data)
        result = api.run(api.load_recipe(data), out.with_name(f"{out.name}.run"), resume=True)
    show_claim(result.certificate)
    _write(result.path / "sanitized.parquet", out, text)
    show_files([("sanitised text", out), ("certificate", result.path / "certificate.md")])


@contextmanager
def _in_options() -> Iterator[None]:
    """Errors name keys of a recipe: here they name the options of the command."""
    try:
        yield
    except RayPrivacyError as error:
        message, kind = str(error), type(error)
        for name, option in _OPTIONS.items():
            message = message.replace(f"'{name}'", option).replace(name, option)
        raise kind(message) from None


def _check_columns(data: Json) -> None:
    """Look at the file before anything is made or computed."""
    from rayprivacy.corpus.sources import check_source

    try:
        check_source(api.load_recipe(data).corpus)
    except CorpusError as error:
        message = str(error)
        if not message.startswith("corpus.user"):
            raise
    else:
        return
    raise CorpusError(f"{message.rstrip('.')}; or say --each-row, where every row stands for itself.")


def _say_epsilon(data: Json) -> None:
    epsilon, most = data["privacy"]["epsilon"], data["corpus"]["max_records_per_user"]
    if most is None:
        typer.echo(f"epsilon {epsilon:g} for each row, which stands for itself")
    else:
        typer.echo(
            f"epsilon {epsilon:g} for a user: {epsilon / most:.5g} for each of at most {most} rows (--max-records)"
        )


def _write(released: Path, out: Path, text: str) -> None:
    """The released rows in the format that the name of the copy says, with the source's name of the text."""
    import json

    import pyarrow.parquet as pq
    from pyarrow import csv

    rows = pq.read_table(released)
    rows = rows.rename_columns([text if name == "text" else name for name in rows.column_names])
    match out.suffix.lower():
        case ".parquet":
            pq.write_table(rows, out, compression="zstd")
        case ".csv":
            csv.write_csv(rows, out)
        case _:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows.to_pylist())
            out.write_text("".join(lines), encoding="utf-8")
