"""Releases of version 0.1 whose claim may not hold: they are found in a book and in an export, and others are not."""

from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent
from typer.testing import CliRunner

from rayprivacy.cli import app
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger

STEPS = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0)), 2)
SEARCH = RepeatAndSelectDpEvent(STEPS, 4.0, 1.0)
MODEL, PREFIX = b"d" * 64, b"steps-2:"
WINNER = b"0123456789abcdef"


@pytest.fixture
def trained(ledger: Ledger) -> Ledger:
    terms = PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6)
    ledger.create_account("train", *terms, composition="rdp", order=8)
    return ledger


def _commit(ledger: Ledger, release: str, event: DpEvent, output: bytes, rung: int = 0) -> None:
    ledger.commit_output(ledger.start(ledger.reserve("train", release, "d", event, rung=rung)), output)


CASES = [
    ("trained by 0.1", STEPS, MODEL, 1, True),
    ("trained now", STEPS, PREFIX + MODEL, 1, False),
    ("searched by 0.1", SEARCH, WINNER, 0, True),
    ("searched now", SEARCH, b"selection-2:" + WINNER, 0, False),
    ("votes", GaussianDpEvent(50.0), MODEL, 0, False),
]


@pytest.mark.parametrize(("release", "event", "output", "rung", "warns"), CASES, ids=[case[0] for case in CASES])
def test_what_version_0_1_trained_is_named(
    trained: Ledger, release: str, event: DpEvent, output: bytes, rung: int, warns: bool
) -> None:
    _commit(trained, release, event, output, rung)
    assert trained.verify().recalled == ((f"'{release}' of account 'train'",) if warns else ())


def test_an_unfinished_or_repeated_release_is_named_once(trained: Ledger) -> None:
    trained.start(trained.reserve("train", "unfinished", "d", STEPS, rung=1))
    for rung in (1, 2):
        _commit(trained, "whole", STEPS, MODEL, rung)
    assert trained.verify().recalled == ("'whole' of account 'train'",)


def test_the_command_warns_for_a_book_and_for_its_export(sqlite_url: str, tmp_path: Path) -> None:
    ledger = Ledger.open(sqlite_url)
    terms = PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6)
    ledger.create_account("train", *terms, composition="rdp", order=8)
    _commit(ledger, "old", STEPS, MODEL, 1)
    _commit(ledger, "new", STEPS, PREFIX + MODEL, 1)
    folder = str(tmp_path / "export")
    _say("ledger", "export", "--ledger", sqlite_url, "--out", folder)
    for place in (("--ledger", sqlite_url), ("--export", folder)):
        said = _say("ledger", "verify", *place)
        assert "WARNING: release 'old' of account 'train' was made by version 0.1 with DP-SGD" in said
        assert "'new'" not in said


def _say(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())
