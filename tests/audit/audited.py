"""A finished run directory without a model, as `rayprivacy audit` finds it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from plain_shards import EVENTS, write_shards

from rayprivacy.core.files import write_atomic, write_json
from rayprivacy.core.keys import load_key
from rayprivacy.corpus.manifest import read_holdout, read_part
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.models.save import save_model
from rayprivacy.runs.files import dump_recipe

PARTS, SECRET = 2, b"7" * 32


class Audited:
    """Shards, recipe and certificate; the rows that were trained on, and those held out."""

    def __init__(self, root: Path, settings: dict[str, Any], table: pa.Table) -> None:
        self.root, key_path = root / "run", root / "secret.key"
        write_atomic(key_path, SECRET, 0o600)  # who is held out must not change from day to day
        self.key = load_key(key_path)
        privacy = {"key": str(key_path), "ledger": "sqlite:///ledger.db"}
        self.recipe = parse_recipe(settings | {"privacy": privacy})
        self.shards = self.root / "private" / "shards"
        write_shards(table, self.key, self.recipe, self.shards, PARTS)
        (self.root / "recipe.yaml").write_text(dump_recipe(self.recipe))
        body = {"epsilon": 3.0, "delta": 1e-6, "kind": "central", "unit": "user", "events": EVENTS}
        write_json(self.root / "certificate.json", body)
        self.training = [row for part in range(PARTS) for row in read_part(self.shards, part).to_pylist()]
        self.heldout = read_holdout(self.shards).to_pylist()

    def save(self, model: Any, tokenizer: Any, root: Path | None = None) -> None:
        save_model(model, tokenizer, (root or self.root) / "model", "release", "A test.")
