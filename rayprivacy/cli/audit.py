"""Command: attack a finished run, and compare what comes out with its certificate."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.cli.options import show_files
from rayprivacy.core.tables import WholeTable

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
        _show(found, Console(), Path(directory))


def _show(found: dict[str, Any], console: Console, root: Path) -> None:
    claim, sample = found["claim"], found["sample"]
    people = f"{sample['members']} training and {sample['others']} held-out {claim['unit']}s"
    console.print(_membership(found, f"membership inference, {people}; internal"))
    if found["overlap"]:
        console.print(_overlap(found["overlap"]), highlight=False)
    if found["canaries"]:
        console.print(_canaries(found["canaries"]))
    for note in found["notes"].values():
        console.print(f"- {note}", highlight=False)
    style = "bold red" if found["verdict"]["flagged"] else None
    console.print(found["verdict"]["sentence"], highlight=False, style=style)
    show_files([("audit", root / "audit.json")])


def _membership(found: dict[str, Any], title: str) -> WholeTable:
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


def _overlap(overlap: dict[str, Any]) -> str:
    return (
        f"synthetic texts that share {overlap['words']} words in a row with all training users: "
        f"{overlap['training']:.1%}; with as many of them as were held out: {overlap['training_as_many_users']:.1%};"
        f" with held-out users: {overlap['heldout']:.1%}"
    )


def _canaries(figures: list[dict[str, Any]]) -> WholeTable:
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
