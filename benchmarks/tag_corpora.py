"""The corpora of the table of taggers: SNIPS, whose unit is the request, and MultiDoGO with conversations as units."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dialog_tags
import snips_tags
import yaml

from rayprivacy.core.keys import Key
from rayprivacy.tagging.settings import Tags

JOBS = Path(__file__).parents[1] / "jobs" / "edp_sgd"
PRIVATE, PUBLIC = 45, 5  # percent of the requests of SNIPS
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TagCorpus:
    """Rows with `text`, `intent` and `slots`, in three parts that share no unit.

    Attributes:
        unit: the column that names whom a row belongs to.
        tags: the public lists.
        private: what is trained on.
        public: declared public: what scales of layers are made of.
        test: held out.
    """

    unit: str
    tags: Tags
    private: Rows
    public: Rows
    test: Rows


def snips(data: Path) -> TagCorpus:
    """All requests, split 45 : 5 : 50 as in the paper, by a keyed hash whose key is public."""
    parts: dict[str, Rows] = {"private": [], "public": [], "test": []}
    for row in snips_tags.rows_of(data):
        percent = Key.for_tests().integer("split", row["request"]) % 100
        parts["private" if percent < PRIVATE else "public" if percent < PRIVATE + PUBLIC else "test"].append(row)
    return TagCorpus("request", _tags("snips"), **parts)


def multidogo(data: Path) -> TagCorpus:
    """Conversations of three services, in the splits of the corpus."""
    parts = [dialog_tags.rows_of(data / "multidogo_turn.parquet", split) for split in ("train", "dev", "test")]
    return TagCorpus("conversation", _tags("multidogo"), *parts)


CORPORA: Mapping[str, Callable[[Path], TagCorpus]] = {"snips": snips, "multidogo": multidogo}


def _tags(job: str) -> Tags:
    """The lists of a shipped job."""
    model = yaml.safe_load((JOBS / f"{job}.yaml").read_text())["model"]
    return Tags(tuple(model["intents"]), tuple(model["slots"]))
