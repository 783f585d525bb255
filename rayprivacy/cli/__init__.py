"""The command line. Exit codes: 0 done, 1 failure, 2 bad input, 3 budget refused."""

import re
import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from rayprivacy.cli import epsilon, evidence, hidden, ledger, profile, questions, results, runs, sanitize
from rayprivacy.core.errors import ConfigError, RayPrivacyError, is_full
from rayprivacy.core.files import at_home

_HOME = re.compile(r"(--[a-z-]+=)?(~(?:/.*)?)", re.DOTALL)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__, rich_markup_mode=None)
for commands in (runs, hidden, results, sanitize, profile, questions, evidence):
    app.add_typer(commands.app)
app.add_typer(ledger.app, name="ledger")
app.add_typer(epsilon.app, name="epsilon")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default on this process's words; a wrong input is one sentence and an exit code."""
    refusal: RayPrivacyError
    try:
        app([_from_home(word) for word in (sys.argv[1:] if arguments is None else arguments)])
    except SystemExit as end:  # typer ends every command so
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except RayPrivacyError as error:
        refusal = error
    except Exception as error:
        told = _of_place(error)
        if told is None:
            raise
        refusal = ConfigError(told)
    else:
        return 0
    Console(stderr=True).print(f"rayprivacy: {refusal}", style="red", markup=False, highlight=False, soft_wrap=True)
    return refusal.exit_code


def _from_home(word: str) -> str:
    """A word of the command line; a shell writes out the `~` of `--out ~/chat`, and not that of `--out=~/chat`."""
    found = _HOME.fullmatch(word)
    return f"{found[1] or ''}{at_home(found[2])}" if found else word


def _of_place(error: Exception) -> str | None:
    """What is wrong with a place that a command reads or writes, if that is what ended it."""
    if is_full(error):
        return "a disk has no room left: make room, and run the same command again; what was charged is kept."
    if not isinstance(error, OSError) or error.filename is None:
        return None
    reason = error.strerror or type(error).__name__
    return f"{error.filename} cannot be read or written ({reason}): name a place that is there, and yours to write."
