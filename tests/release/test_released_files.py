"""The release of a file says in the book how it was made, and what an earlier version released is not served again."""

from pathlib import Path

import pytest

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.private import digest_file
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.files import FileRelease, release_file

LOCAL = Protection(PrivacyUnit.USER, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    budget = Budget(100.0, 1e-6)
    found.ensure_account("talk", LOCAL.unit, LOCAL.relation, budget, "metric", kind=LOCAL.kind)
    return found


def _release(folder: Path) -> FileRelease:
    event = MetricLocalDpEvent(1.0, 1.0, 8)
    return FileRelease("talk", "santext-1", "d" * 64, event, LOCAL, folder / "out.parquet", folder / "scratch")


def test_the_output_in_the_book_begins_with_the_version(ledger: Ledger, tmp_path: Path) -> None:
    release = _release(tmp_path)
    released = release_file(ledger, release, lambda path: path.write_bytes(b"text") and None)
    (charge,) = ledger.charges_of("talk", "santext-1")
    digest = digest_file(released.value)
    assert ledger.output(charge) == digest.encode()
    assert len(digest) == 64, "the whole output of version 1, by whose size it is known"
    again = release_file(ledger, release, lambda path: pytest.fail("written twice"))
    assert again.value.read_bytes() == b"text"
