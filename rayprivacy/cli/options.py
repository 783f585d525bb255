"""Options that several commands take, and what several of them print."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rayprivacy.ledger.certificate import Certificate

RecipeFile = Annotated[Path, typer.Argument(help="A recipe: a YAML file such as those in jobs/.")]
Overrides = Annotated[list[str] | None, typer.Option("-o", "--override", help="key=value, e.g. privacy.epsilon=8")]
LedgerUrl = Annotated[str, typer.Option("--ledger", help="sqlite:///ledger.db or postgresql://host/database")]
LedgerKey = Annotated[Path | None, typer.Option("--ledger-key", help="Key file that authenticates the ledger.")]
WorkFolder = Annotated[
    Path | None,
    typer.Option("--work", help="Local folder in which a run at a URI is worked on.", show_default="the user's cache"),
]
AccountName = Annotated[str, typer.Option("--account", help="Name of the account: one private corpus.")]
Head = Annotated[str | None, typer.Option("--expected-head", help="A head seen earlier, e.g. of a certificate.")]
Delta = Annotated[float, typer.Option(help="delta of the guarantee")]
ACCOUNTED = "accountant: analytic Gaussian (GDP), relation: add-or-remove"


def show_claim(certificate: Certificate, sentence: str = "") -> None:
    """Print a certificate's warnings, a sentence on its claim, and its figures."""
    console = Console()
    for warning in certificate.warnings:
        console.print(f"WARNING: {warning}", style="bold red")
    for line in [sentence] * bool(sentence) + [f"{name}: {figure}" for name, figure in certificate.figures.items()]:
        console.print(line, highlight=False)


def central_claim(certificate: Certificate) -> str:
    """What a run asked for, and the cap of its account."""
    asked = certificate.run_request
    return (
        f"\n{certificate.kind}: epsilon = {asked.epsilon:g}, delta = {asked.delta:g}, unit = {certificate.unit}"
        f" ({certificate.relation}); account cap: epsilon = {certificate.epsilon:g}"
    )


def show_files(files: Iterable[tuple[str, str | Path]]) -> None:
    """Print where files are, one in a line."""
    for label, path in files:
        typer.echo(f"{label:<16}{path}")
