"""What the users of a sharded corpus count for: sums by cell, and how many of them have each word and label.

One Ray task for each part file. A user counts in each block of cells by the shares of their own texts, and once for
each of a bounded number of words and values of labels: those that most of their own texts hold, in which users meet
more often than in any others of theirs (chat: 3 words pass in place of none at 2% of epsilon 3). Nobody else has a say
in either. Nothing is random, so that a task that runs again gives the same; the release gate alone draws noise.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import Private, Seal, digest_bytes, digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.content import STOP_WORDS, content_words
from rayprivacy.corpus.manifest import owners_of, part_tables
from rayprivacy.methods.profile import cells
from rayprivacy.methods.profile.cells import Cells
from rayprivacy.methods.profile.recipe import LABEL_VALUES, ProfileRecipe
from rayprivacy.models.loading import load_tokenizer, telling
from rayprivacy.models.sources import resolve_base
from rayprivacy.models.spelling import ids_of
from rayprivacy.release.histogram import Totals, summed
from rayprivacy.release.thresholded import KeySums, ThresholdedCounts
from rayprivacy.work.mapping import on_numbers

_STEP = "counting users"
_SEAL = Seal(ReleaseError, "nothing was charged for it, run again with --resume")
_FIRST = np.cumsum((0, *cells.BLOCKS[:-1]))  # cell of each block


@dataclass(frozen=True)
class Counting:
    """What is counted, and how much of each user counts: the same for all parts."""

    shards: Path
    key_path: Path
    base: str  # whose tokens are counted
    totals: Totals
    keywords: int = 0
    labels: tuple[str, ...] = ()
    keys: ThresholdedCounts | None = None  # of words and labels; None where none are counted


def count_users(job: Counting, parts: int, told: Told = nobody) -> tuple[Private[Cells], Private[KeySums]]:
    """The sums by cell, and the numbers of users by word or label, of all parts; `told` hears how many are done."""
    total, by_key = np.zeros(job.totals.cells, np.int64), Counter[str]()
    for done, (_, (sums, found)) in enumerate(on_numbers(count_part, job, range(parts), _STEP, _SEAL), start=1):
        total += sums
        by_key.update(found)
        told(done)
    return Private(total), Private(by_key)


@_SEAL.around(_STEP)
def count_part(job: Counting, part: int) -> tuple[Cells, Counter[str]]:
    """The same of one part, of which one file at a time is in memory; of no user there are rows in two."""
    total, by_key = np.zeros(job.totals.cells, np.int64), Counter[str]()
    tokenizer, key = tokenizer_of(job.base), load_key(job.key_path)
    for rows in part_tables(job.shards, part):
        total += _sums(rows, job.totals, tokenizer)
        if job.keys is not None:
            mentions = list(_mentions(rows, job, key))
            by_key.update(job.keys.contribution(key, [owner for owner, _ in mentions], [word for _, word in mentions]))
    return total, by_key


def _sums(rows: pa.Table, totals: Totals, tokenizer: Any) -> Cells:
    owners, texts = owners_of(rows, PrivacyUnit.USER), rows["text"].to_pylist()
    tokens = np.array([len(ids) for ids in ids_of(tokenizer, texts)], np.int64)
    found = (
        np.zeros_like(owners),
        cells.records_cells(np.bincount(owners)[owners]),
        cells.tokens_cells(tokens),
        np.array([cells.script_cell(text) for text in texts], np.int64),
    )
    return summed(totals, owners, np.column_stack(found) + _FIRST)


def _mentions(rows: pa.Table, job: Counting, key: Key) -> Iterator[tuple[str, str]]:
    """Users with the words and values of labels that they count for."""
    by_user = rows.select(["user", "text", *job.labels]).sort_by("user").to_pylist()
    for user, own in ((user, list(own)) for user, own in groupby(by_user, key=lambda row: str(row["user"]))):
        words = Counter(word for row in own for word in set(content_words(row["text"])))
        kept = _foremost(words, job.keywords, user, key)
        for label in job.labels:
            values = Counter(label_key(label, row[label]) for row in own if row[label] is not None)
            kept += _foremost(values, LABEL_VALUES, user, key)
        yield from ((user, each) for each in kept)


def _foremost(held: Counter[str], most: int, user: str, key: Key) -> list[str]:
    """What most texts of a user hold, and of what equally many do, the first in the user's keyed order."""
    name = user.encode("utf-8", "surrogatepass")
    return sorted(held, key=lambda each: (-held[each], key.digest("profile", name, each)))[:most]


def label_key(label: str, value: str) -> str:
    """A value of a label as a key, which no word is.

    >>> label_key("topic", "food")
    '["topic", "food"]'
    """
    return json.dumps([label, value], ensure_ascii=False)


def label_of(key: str) -> tuple[str, str] | None:
    """The label and the value of a key; None for a word."""
    return tuple(json.loads(key)) if key.startswith("[") else None


@lru_cache(maxsize=1)
def tokenizer_of(base: str) -> Any:
    """The tokenizer of a public base; ConfigError where there is none."""
    with telling(base):
        return load_tokenizer(resolve_base(base))


def question_of(job: Counting) -> str:
    """Digest of what users are asked: the cells, how texts fall into them, and which words and labels count."""
    backend = getattr(tokenizer_of(job.base), "backend_tokenizer", None)
    spelt = backend.to_str() if backend is not None else json.dumps(tokenizer_of(job.base).get_vocab(), sort_keys=True)
    named = [cells.RULES, cells.RECORDS, cells.TOKENS, cells.SCRIPTS, sorted(STOP_WORDS)]
    return digest_json([digest_bytes(spelt.encode()), named, job.keywords, LABEL_VALUES, list(job.labels)])


def check_inputs(recipe: ProfileRecipe) -> None:
    """Refuse a base without a tokenizer, before the account is opened."""
    tokenizer_of(recipe.model.base)
