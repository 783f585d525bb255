"""The `privacy` block of a recipe: what is protected, how much, and which account pays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.units import Budget, PrivacyUnit

if TYPE_CHECKING:
    from rayprivacy.ledger.store import Ledger


class PrivacyConfig(Config):
    """Unit, budget and account of one run.

    Attributes:
        unit: whose presence is hidden.
        epsilon, delta: what this run asks for; also the cap of an account that does not exist yet.
        ledger: SQLAlchemy URL of the ledger.
        ledger_key: path of a 256-bit key file that authenticates the ledger's entries; it must exist.
        account: the account that pays: one account is one private corpus.
        corpus: label shared by all accounts of one corpus.
        composition: the account's composition rule; 'rdp' takes the order that suits this run best.
        key: path of the 256-bit key file, created with mode 0600 when it does not exist.
    """

    unit: PrivacyUnit = PrivacyUnit.USER
    epsilon: float = Field(default=3.0, gt=0)
    delta: float = Field(default=1e-6, gt=0, lt=1)
    ledger: str = "sqlite:///ledger.db"
    ledger_key: Annotated[str | None, PathKind.PRIVATE] = None
    account: str = Field(default="default", min_length=1)
    corpus: str = ""
    composition: Literal["gdp", "zcdp", "rdp", "pld", "metric"] = "gdp"
    key: Annotated[str, PathKind.PRIVATE] = "rayprivacy.key"

    @property
    def budget(self) -> Budget:
        """What this run asks for."""
        return Budget(self.epsilon, self.delta)

    def open_ledger(self, expected_head: str | None = None) -> "Ledger":
        """Open the ledger that this block names, with its key if it has one, as `Ledger.open` does."""
        from rayprivacy.core.keys import load_key
        from rayprivacy.ledger.store import Ledger  # takes a second to import, which recipes alone do not need

        key = load_key(Path(self.ledger_key)) if self.ledger_key else None
        return Ledger.open(self.ledger, expected_head, key)
