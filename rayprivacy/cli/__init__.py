"""The command line. Exit codes: 0 done, 1 failure, 2 bad input, 3 budget refused."""

from collections.abc import Sequence

import typer
from rich.console import Console

from rayprivacy.cli import epsilon, ledger, results, runs, sanitize
from rayprivacy.core.errors import RayPrivacyError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__, rich_markup_mode=None)
for commands in (runs, results, sanitize):
    app.add_typer(commands.app)
app.add_typer(ledger.app, name="ledger")
app.add_typer(epsilon.app, name="epsilon")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default on this process's words; a wrong input is one sentence and an exit code."""
    try:
        app(arguments)
    except SystemExit as end:  # typer ends every command so
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except RayPrivacyError as error:
        Console(stderr=True).print(f"rayprivacy: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    return 0
