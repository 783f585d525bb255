"""Commands on the ledger: open an account, show what is left, replay the book."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rayprivacy.cli.options import Delta, LedgerUrl
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger

app = typer.Typer(no_args_is_help=True, help="Accounts, what they have left, and whether the book is intact.")


@app.command("create")
def ledger_create(
    ledger: LedgerUrl,
    account: Annotated[str, typer.Option(help="Name of the account: one private corpus.")],
    epsilon: Annotated[float, typer.Option(help="Cap of the account.")],
    delta: Delta = 1e-6,
    unit: Annotated[PrivacyUnit, typer.Option(help="Whose presence is hidden.")] = PrivacyUnit.USER,
) -> None:
    """Open an account with a cap that holds for everything ever released from it.

    Example: rayprivacy ledger create --ledger sqlite:///ledger.db --account chat --epsilon 8
    """
    book = Ledger.open(ledger)
    book.create_account(account, unit, NeighbouringRelation.ADD_OR_REMOVE, Budget(epsilon, delta))
    typer.echo(f"account {account}: epsilon {epsilon:g} at delta {delta:g}, unit {unit}, composition gdp")


@app.command("show")
def ledger_show(
    ledger: LedgerUrl, account: Annotated[str | None, typer.Option(help="One account; all if left out.")] = None
) -> None:
    """Show what accounts have spent and have left.

    Example: rayprivacy ledger show --ledger sqlite:///ledger.db
    """
    book = _existing(ledger)
    table = Table("account", "unit", "cap (epsilon, delta)", "spent (diagnostic)", "left", "releases")
    for name in [account] if account else [entry.name for entry in book.accounts()]:
        status = book.status(name)
        terms, releases = status.account, {entry.release_id for entry in status.entries if entry.release_id}
        table.add_row(
            name,
            terms.unit,
            f"{terms.epsilon:g}, {terms.delta:g}",
            f"{status.epsilon_spent:.4g}",
            f"{status.epsilon_remaining:.4g}",
            str(len(releases)),
        )
    Console().print(table)


@app.command("verify")
def ledger_verify(ledger: LedgerUrl) -> None:
    """Replay the book from its rows alone and say whether it is intact.

    Example: rayprivacy ledger verify --ledger sqlite:///ledger.db
    """
    book = _existing(ledger)
    book.verify()
    typer.echo(f"intact; head {book.head()}")


def _existing(url: str) -> Ledger:
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise ConfigError(f"--ledger is {url!r}: there is no such ledger, create one with `rayprivacy ledger create`.")
    return Ledger.open(url)
