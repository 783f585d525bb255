"""A tiny corpus and a recipe of the toy method, run in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rich.console import Console
from small_jobs import ledger_lines, small_corpus_block, small_privacy

import rayprivacy as rp
from rayprivacy.api import Result

USERS, SENTENCES = 30, 4
SPOKEN = "spoken in private"
QUIET = Console(quiet=True)


class Bench:
    def __init__(self, folder: Path, base: Path) -> None:
        self.folder = folder
        self.talk("talk.parquet", USERS)
        (folder / "public.txt").write_text("hello how are you today\nthe weather is nice\n")
        self.blocks: dict[str, Any] = {
            "method": "toy",
            "corpus": small_corpus_block(folder),
            "privacy": small_privacy(folder),
            "model": {"base": str(base), "dtype": "float32"},
        }
        self.recipe.write_text(yaml.safe_dump(self.blocks))

    @property
    def recipe(self) -> Path:
        return self.folder / "toy.yaml"

    def talk(self, file: str, users: int, name: str = "user") -> None:
        rows = [
            {"who": f"{name}-{u}", "said": f"{SPOKEN} {'word ' * ((u + n) % 14)}{u} {n}"}
            for u in range(users)
            for n in range(SENTENCES)
        ]
        pq.write_table(pa.Table.from_pylist(rows), self.folder / file)

    def load(self, overrides: Mapping[str, Any] | None = None) -> rp.Recipe:
        return rp.load_recipe(self.recipe, overrides or {})

    def run(self, out: str = "out", overrides: Mapping[str, Any] | None = None, **more: Any) -> Result:
        return rp.run(self.load(overrides), self.folder / out, console=QUIET, **more)

    def charges(self, account: str = "talk") -> list[tuple[str, int, str]]:
        return ledger_lines(self.folder, account)

    def space(self, **blocks: Any) -> Path:
        data = {
            "recipe": "toy.yaml",
            "search": {"toy.sharpness": {"loguniform": [0.1, 10.0]}},
            "budget": {"account": "search", "epsilon": 8.0, "delta": 1e-6},
            "metric": {"name": "public_perplexity", "text": "public.txt"},
            "trials": 3,
        }
        path = self.folder / "space.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in (data | blocks).items() if value is not None}))
        return path
