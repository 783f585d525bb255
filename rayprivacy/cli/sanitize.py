"""The command `sanitize`: one file in, a sanitised one out, with a certificate beside it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rayprivacy import api
from rayprivacy.cli.options import show_claim, show_files
from rayprivacy.core.errors import ConfigError

app = typer.Typer()


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
    data: dict[str, Any] = {
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
