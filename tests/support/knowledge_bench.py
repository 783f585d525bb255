"""A small corpus of users who agree on some facts, each with a secret of their own, and a recipe of knowledge on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from small_jobs import ledger_lines, small_privacy
from toy_bench import QUIET
from toy_knowledge import ATTRIBUTES

import rayprivacy as rp
from rayprivacy.api import Result
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.directory import Run
from rayprivacy.runs.drive import drive

USERS, PARTS = 40, 3
COMMON = ("Zorvel is a fire type and Zorvel eats berries.", "I saw Mirak today. Mirak weighs 12 kg, yes.")
MORE = "Mirak is a water type and Mirak eats tree bark."  # else chance might answer these, once in 200 questions
MARK = "zqxjvk"  # a name and a word of single users alone
FACTS = {("zorvel", "type"): "fire", ("zorvel", "diet"): "berries", ("mirak", "weight"): "12"}
FACTS |= {("mirak", "type"): "water", ("mirak", "diet"): "tree bark"}


def secret(user: int) -> str:
    """A text that nobody else writes."""
    letters = "".join(chr(ord("a") + int(digit)) for digit in str(user))
    return f"{MARK.capitalize()}{letters} is a water type and {MARK.capitalize()}{letters} weighs {user + 20} kg."


def talk(users: int = USERS, secrets: int = 1) -> list[dict[str, str]]:
    """What users say; the first ones have so many secrets each."""
    rows = [{"who": f"user-{user}", "said": text} for user in range(users) for text in (*COMMON, MORE)]
    return rows + [
        {"who": f"user-{user}", "said": secret(100 * user + n)} for user in range(users) for n in range(secrets)
    ]


class KnowledgeBench:
    """A folder with corpus, key, ledger and recipe."""

    def __init__(self, folder: Path, **knowledge: Any) -> None:
        self.folder = folder
        self.write(talk())
        most = {"names": {"most": 3}, "answers": {"most": 6}}
        self.blocks: dict[str, Any] = {
            "method": "knowledge",
            "corpus": {"source": str(folder / "talk.parquet"), "user": "who", "text": "said"},
            "privacy": small_privacy(folder) | {"epsilon": 20.0},
            "model": {"dtype": "float32"},
            "knowledge": {"attributes": ATTRIBUTES[:3], **most, **knowledge},
            "resources": {"parts": PARTS},
        }
        self.recipe.write_text(yaml.safe_dump(self.blocks))

    @property
    def recipe(self) -> Path:
        return self.folder / "talk.yaml"

    def write(self, rows: Sequence[Mapping[str, str]]) -> None:
        pq.write_table(pa.Table.from_pylist(list(rows)), self.folder / "talk.parquet")

    def load(self, overrides: Mapping[str, Any] | None = None) -> rp.Recipe:
        return rp.load_recipe(self.recipe, overrides or {})

    def run(self, out: str = "out", overrides: Mapping[str, Any] | None = None) -> Result:
        return rp.run(self.load(overrides), self.folder / out, console=QUIET)

    def drive(self, out: str = "out", overrides: Mapping[str, Any] | None = None) -> Run[Any]:
        """A run up to its certificate, without figures, questions and report."""
        recipe = self.load(overrides)
        return drive(method_of(recipe), recipe, self.folder / out, console=QUIET, measured=False).run

    def charges(self) -> list[tuple[str, int, str]]:
        return ledger_lines(self.folder)


def facts_of(root: Path) -> dict[tuple[str, str], str]:
    """The facts of a run."""
    rows = pq.read_table(root / "facts.parquet").to_pylist()
    return {(row["name"], row["attribute"]): row["answer"] for row in rows}
