"""A tiny corpus, two small recipes on the tiny model, and space files beside them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from recipes import SEQPATE, TRAINING
from rich.console import Console
from small_jobs import ledger_lines, write_talk

from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.tuning.search import start_search
from rayprivacy.tuning.space import load_space
from rayprivacy.tuning.trials import Trials


@dataclass(frozen=True)
class Bench:
    """A folder with recipes, public sentences and a ledger."""

    folder: Path

    def space(self, **blocks):
        data = {
            "recipe": "generator.yaml",
            "search": {"training.clipping_norm": {"loguniform": [0.1, 10.0]}},
            "budget": {"account": "search", "epsilon": 8.0, "delta": 1e-6},
            "metric": {"name": "public_perplexity", "text": "public.txt"},
        }
        path = self.folder / "space.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in (data | blocks).items() if value is not None}))
        return path

    @property
    def ledger(self):
        return Ledger.open(f"sqlite:///{self.folder}/ledger.db")

    def trials(self, **blocks):
        return Trials.of(load_space(self.space(**blocks)), self.folder / "out")

    def search(self, space, out="out", resume=False, console=None):
        return start_search(space, (), self.folder / out, resume=resume, console=console or Console(quiet=True))

    def account(self, epsilon, unit=PrivacyUnit.USER, **terms):
        """The ledger, with the account of the search opened."""
        relation, budget, ledger = NeighbouringRelation.ADD_OR_REMOVE, Budget(epsilon, 1e-6), self.ledger
        ledger.ensure_account("search", unit, relation, budget, "rdp", **terms)
        return ledger

    def charges(self):
        return ledger_lines(self.folder, "search")


def _nowhere(texts, *places):
    """No file outside of private folders holds any of these."""
    for place in places:
        for path in place.rglob("*"):
            if path.is_file() and "private" not in path.relative_to(place).parts:
                content = path.read_bytes()
                assert not [text for text in texts if text in content], path


@pytest.fixture
def nowhere():
    return _nowhere


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def bench(tmp_path, tiny_base, public_sentences):
    (tmp_path / "public.txt").write_text("\n".join(public_sentences))
    shared = {
        "corpus": {"source": str(tmp_path / "talk.parquet"), "user": "who", "text": "said", "holdout": 0.0},
        "privacy": {"ledger": f"sqlite:///{tmp_path}/ledger.db", "key": str(tmp_path / "secret.key"), "epsilon": 2.0},
        "model": {"base": str(tiny_base), "dtype": "float32"},
        "generation": {"texts": 8, "max_tokens": 10},
    }
    generator = {"method": "generator", "training": TRAINING, "resources": {"cpus": 1, "actors": 1}}
    for name, own in (("generator", generator), ("seqpate", SEQPATE)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(shared | own))
    write_talk(tmp_path / "talk.parquet")
    return Bench(tmp_path)
