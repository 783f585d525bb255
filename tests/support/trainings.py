"""Trainings at the gate, without any model: an account that pays, the name of a training, and its chunks in order."""

from pathlib import Path
from typing import Any

from rayprivacy.core.keys import Key
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.release.steps import StepGate, StepRelease


def open_book(
    folder: Path, plan: list[Any], composition: str = "rdp", epsilon: float = 8.0, account: str = "chat"
) -> Ledger:
    """A ledger in a new or known folder, with an account of users."""
    folder.mkdir(exist_ok=True)
    ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
    budget = Budget(epsilon, 1e-6)
    ledger.ensure_account(account, PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, budget, composition, plan=plan)
    return ledger


def training(
    ledger: Ledger, mechanism: NoisySteps, *inputs: str, chunk: int = 4, account: str = "chat", **more: str
) -> StepRelease:
    """The training 'run', of a corpus and a base model unless others are given."""
    inputs = inputs or ("corpus", "base")
    return StepRelease.of(ledger, account, "run", Key.for_tests(), mechanism, chunk, *inputs, **more)


def train(ledger: Ledger, release: StepRelease, model: str = "m1", until: int | None = None) -> StepGate:
    """Charge its chunks, or the first ones, each of which ends in a model of its own."""
    gate = StepGate(ledger, release)
    for rung in range(1, (until or release.rungs) + 1):
        gate.begin(rung)
        gate.end(rung, f"{model} after {rung}")
    return gate
