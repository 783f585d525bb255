"""A small corpus and a recipe of SanText, run in this process."""

from pathlib import Path
from typing import Any

import yaml
from toy_bench import Bench

import rayprivacy as rp
from rayprivacy.api import Result

SETTINGS: dict[str, dict[str, Any]] = {
    "corpus": {"max_records_per_user": 4, "holdout": 0.0},
    "privacy": {"epsilon": 5000.0},
    "sanitize": {"words": 300, "keep": 0.5, "max_tokens": 20, "plus": {"sensitive": 0.8, "p": 0.25}},
    "evaluation": {"attacked": 20},
}


def santext_bench(folder: Path, base: Path) -> Bench:
    found = Bench(folder, base)
    found.blocks |= {"method": "santext", "model": {"base": str(base)}}
    found.blocks |= {name: found.blocks.get(name, {}) | block for name, block in SETTINGS.items()}
    found.recipe.write_text(yaml.safe_dump(found.blocks))
    return found


def elsewhere(bench: Bench, name: str, **more: Any) -> Result:
    """A run of the same corpus and key, with a ledger of its own."""
    return bench.run(name, {"privacy.ledger": ledger_of(bench, name), **more})


def ledger_of(bench: Bench, name: str) -> str:
    return f"sqlite:///{bench.folder}/{name}.db"


def charges_of(bench: Bench, name: str) -> int:
    with rp.Ledger.open(ledger_of(bench, name)) as ledger:
        ledger.verify()
        return len(ledger.lines("talk"))
