"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

RecipeFile = Annotated[Path, typer.Argument(help="A recipe, e.g. jobs/seqpate/chat.yaml.")]
Overrides = Annotated[list[str] | None, typer.Option("-o", "--override", help="key=value, e.g. privacy.epsilon=8")]
LedgerUrl = Annotated[str, typer.Option("--ledger", help="SQLAlchemy URL, e.g. sqlite:///ledger.db")]
Delta = Annotated[float, typer.Option(help="delta of the guarantee")]
ACCOUNTED = "accountant: analytic Gaussian (GDP), relation: add-or-remove"
