"""Commands on the ledger: open accounts, show what is left, replay the book, hand it to an auditor."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rayprivacy.accounting.accountant import read_plan
from rayprivacy.cli.options import AccountName, Delta, Head, LedgerKey, LedgerUrl
from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.files import Json, read_json
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.accounts import MEANING, Account, unit_named, words_named
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.database import parse_url
from rayprivacy.ledger.export import export_ledger, verify_export
from rayprivacy.ledger.rules import COMPOSITIONS
from rayprivacy.ledger.status import AccountStatus
from rayprivacy.ledger.store import Ledger

app = typer.Typer(no_args_is_help=True, help="Accounts, what they have left, and whether the book is intact.")
LAST_LINES = 20
WIDTH = 120  # narrower, and the figures of the tables are cut


@app.command("create")
def ledger_create(
    ledger: LedgerUrl,
    account: AccountName,
    epsilon: Annotated[float, typer.Option(help="Cap of the account.")],
    delta: Delta = 1e-6,
    unit: Annotated[PrivacyUnit, typer.Option(help="Whose presence is hidden.")] = PrivacyUnit.USER,
    relation: Annotated[
        NeighbouringRelation, typer.Option(help="How neighbouring corpora differ.")
    ] = NeighbouringRelation.ADD_OR_REMOVE,
    composition: Annotated[str, typer.Option(help=f"Admission rule: {', '.join(COMPOSITIONS)}.")] = "gdp",
    order: Annotated[float | None, typer.Option(help="RDP order of composition rdp.")] = None,
    threshold_delta: Annotated[
        float | None, typer.Option(help="Part of delta that is kept for releases with a threshold.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan: chooses the rdp order, or is registered for pld.")] = None,
    kind: Annotated[AccountKind, typer.Option(help="What the guarantee means.")] = AccountKind.CENTRAL,
    corpus: Annotated[str, typer.Option(help="Label shared by the accounts of one corpus.")] = "",
    policy: Annotated[str | None, typer.Option(help="Public policy function of a selective account.")] = None,
    of: Annotated[
        str | None, typer.Option(help="Columns that mean the unit, e.g. 'user: author'; left out, the first run says.")
    ] = None,
    protected: Annotated[
        str | None,
        typer.Option(help="Digest of the protected words of a metric-local account, '' for all; as --of if left out."),
    ] = None,
    ledger_key: LedgerKey = None,
) -> None:
    """Open an account with a cap that holds for everything ever released from it.

    Example: rayprivacy ledger create --ledger sqlite:///ledger.db --account chat --epsilon 8
    """
    if plan and (composition not in ("rdp", "pld") or order is not None):
        what = f"--composition is '{composition}'" if order is None else "--order is given"
        raise ConfigError(f"--plan chooses the order of 'rdp', or is registered for 'pld', and {what}: leave one out.")
    events = read_plan(plan) if plan else ()
    terms: Json = {
        "order": order,
        "threshold_delta": threshold_delta,
        "policy": policy,
        "of": of,
        "protected": protected,
    }
    terms = {name: value for name, value in terms.items() if value is not None}
    book = Ledger.open(ledger, key=_key(ledger_key))
    opened = book.create_account(
        account, unit, relation, Budget(epsilon, delta), composition, kind=kind, corpus=corpus, plan=events, **terms
    )
    own = {name: value for name, value in opened.parameters.items() if name not in MEANING}
    rule = ", ".join([composition, *(f"{name} {value}" for name, value in own.items())])
    typer.echo(f"account {account}: epsilon {epsilon:g} at delta {delta:g}, {opened.protection}, composition {rule}")
    _echo_meaning(opened)
    for entry in book.entries(account):
        if entry.kind == "plan":
            typer.echo(f"plan registered: epsilon {entry.facts['epsilon']:.6g} by PLD")


@app.command("register-plan")
def ledger_register_plan(
    ledger: LedgerUrl,
    account: AccountName,
    plan: Annotated[Path, typer.Option(help="YAML or JSON list of events.")],
    ledger_key: LedgerKey = None,
) -> None:
    """Fix what an account of composition pld may run; its claim is then the tighter figure of PLD.

    Example: rayprivacy ledger register-plan --ledger sqlite:///ledger.db --account chat --plan plan.yaml
    """
    epsilon = _existing(ledger, ledger_key).register_plan(account, read_plan(plan))
    typer.echo(f"plan registered for account {account}: epsilon {epsilon:.6g} by PLD")


@app.command("show")
def ledger_show(
    ledger: LedgerUrl,
    account: Annotated[str | None, typer.Option(help="One account, with its charges; all if left out.")] = None,
    every: Annotated[bool, typer.Option("--all", help=f"Every charge, not only the last {LAST_LINES}.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an account.")] = False,
    ledger_key: LedgerKey = None,
) -> None:
    """Show what is reserved, started, committed and left, as epsilons at the account's delta.

    Example: rayprivacy ledger show --ledger sqlite:///ledger.db --account chat
    """
    book = _existing(ledger, ledger_key)
    found = [book.status(name) for name in ([account] if account else [entry.name for entry in book.accounts()])]
    if as_json:
        for status in found:
            typer.echo(json.dumps(status.figures))
        return
    _print_accounts(found)
    for status in found:
        _echo_meaning(status.account)
        taken, kept = status.thresholds
        if kept:
            typer.echo(f"{status.account.name}: keeps delta {kept:g} for thresholds, of which {taken:g} is taken.")
        if status.exposures:
            typer.echo(f"{status.account.name}: {status.exposures} runs of its corpus are non-private for it.")
    if account:
        _print_charges(book, found[0], None if every else LAST_LINES)


@app.command("cancel")
def ledger_cancel(
    ledger: LedgerUrl,
    account: AccountName,
    release: Annotated[str, typer.Option(help="Release id.")],
    ledger_key: LedgerKey = None,
) -> None:
    """Give back what a release has reserved and not started; what has started is never refunded.

    Example: rayprivacy ledger cancel --ledger sqlite:///ledger.db --account chat --release chat-1234
    """
    book = _existing(ledger, ledger_key)
    reserved = [c for c in book.charges_of(account, release) if c.state is ChargeState.RESERVED]
    if not reserved:
        raise LedgerError(f"release '{release}' has nothing reserved in account '{account}': nothing can be cancelled.")
    for charge in reversed(reserved):
        book.cancel(charge)
    typer.echo(f"cancelled {len(reserved)} reserved charges of release {release}")


@app.command("verify")
def ledger_verify(
    ledger: Annotated[str | None, typer.Option("--ledger", help="The ledger; or give --export.")] = None,
    export: Annotated[Path | None, typer.Option(help="A directory that `ledger export` wrote.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="A certificate whose entry must be in the book.")] = None,
    expected_head: Head = None,
    public_key: Annotated[str | None, typer.Option(help="Public key of a signed export.")] = None,
    ledger_key: LedgerKey = None,
) -> None:
    """Replay the book from its rows alone and say whether it is intact.

    Example: rayprivacy ledger verify --ledger sqlite:///ledger.db --certificate runs/chat/certificate.json
    """
    if (ledger is None) == (export is None):
        raise ConfigError("give either --ledger or --export, and not both.")
    if certificate and expected_head:
        raise ConfigError("give either --certificate or --expected-head: each is an entry that must be in the book.")
    if public_key and export is None:
        raise ConfigError("--public-key checks the signature of an export: give it with --export.")
    head = _head(certificate) if certificate else expected_head
    if export is not None:
        report = verify_export(export, key=_key(ledger_key), public_key=public_key, expected_head=head)
    else:
        report = _existing(str(ledger), ledger_key).verify(head)
    if ledger_key and report.macs == "none":
        raise LedgerError("the book carries no authentication: it is not kept with this key, or it was written anew.")
    if ledger_key and head is None and report.macs.startswith("checked from"):
        raise LedgerError(
            f"the book's authentication is {report.macs}: it had no key before, or was written anew without it, so give"
            " --certificate or --expected-head with an entry of that time."
        )
    typer.echo(f"intact: {report.accounts} accounts, {report.entries} entries, {report.charges} charges")
    typer.echo(f"head {report.head}; authentication {report.macs}")


@app.command("export")
def ledger_export(
    ledger: LedgerUrl, out: Annotated[Path, typer.Option(help="New directory.")], ledger_key: LedgerKey = None
) -> None:
    """Write the book as JSON Lines with a summary, signed when the ledger has a key, for an auditor.

    Example: rayprivacy ledger export --ledger sqlite:///ledger.db --out audit-2026
    """
    book = _existing(ledger, ledger_key)
    with book.snapshot() as connection:
        typer.echo(export_ledger(connection, out, _key(ledger_key)))


def _echo_meaning(account: Account) -> None:
    for name, value in account.meaning.items():
        typer.echo(f"{account.name}: protects {unit_named(value) if name == 'of' else words_named(value)}.")


def _existing(url: str, key: Path | None = None) -> Ledger:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not os.path.isfile(str(parsed.database)):
        raise ConfigError(f"--ledger is {url!r}: there is no such ledger, create one with `rayprivacy ledger create`.")
    return Ledger.open(url, key=_key(key))


def _key(path: Path | None) -> Key | None:
    return load_key(path) if path else None


def _head(certificate: Path) -> str:
    try:
        return str(read_json(certificate)["ledger_head"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"--certificate is {certificate}: give the certificate.json of a run.") from None


def _print(table: Table) -> None:
    Console(width=max(Console().width, WIDTH)).print(table)


def _print_accounts(found: list[AccountStatus]) -> None:
    title = "epsilon at the account's delta; the claim is the cap, all else is a diagnostic"
    table = Table(
        "account", "protects", "rule", "delta", "cap", "reserved", "started", "committed", "left", title=title
    )
    for status in found:
        terms, rule, balance = status.account, status.rule, status.balance
        figures: list[Any] = [rule.epsilon(part) for part in (balance.reserved, balance.started, balance.committed)]
        cells = [f"{value:.4g}" for value in (terms.epsilon, *figures, status.epsilon_remaining)]
        table.add_row(terms.name, str(terms.protection), terms.composition, f"{terms.delta:g}", *cells)
    _print(table)


def _print_charges(book: Ledger, status: AccountStatus, last: int | None) -> None:
    lines = book.lines(status.account.name)
    shown = lines[-last:] if last else lines
    of = "of the plan" if status.account.composition == "pld" else "of the cap"
    table = Table("release", "rung", "state", of, "reserved at", "changed at")
    for line in shown:
        part = f"{status.share_of(line):.2%}"
        table.add_row(line.release_id, str(line.rung or "-"), line.state, part, line.reserved_at, line.changed_at)
    _print(table)
    if len(shown) < len(lines):
        typer.echo(f"{len(lines) - len(shown)} earlier charges are not shown: add --all.")
