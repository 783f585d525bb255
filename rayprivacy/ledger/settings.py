"""The `privacy` block of a recipe: what is protected, how much, and which account pays."""

from typing import Literal

from pydantic import Field

from rayprivacy.core.config import Config
from rayprivacy.core.units import Budget, PrivacyUnit


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
    ledger_key: str | None = None
    account: str = Field(default="default", min_length=1)
    corpus: str = ""
    composition: Literal["gdp", "zcdp", "rdp", "weighted", "pld"] = "gdp"
    key: str = "rayprivacy.key"

    @property
    def budget(self) -> Budget:
        """What this run asks for."""
        return Budget(self.epsilon, self.delta)
