"""A fresh ledger file with one account, epsilon 3 at delta 1e-6."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    ledger = Ledger.open(url)
    ledger.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))
    yield ledger
    ledger.close()
