"""Counts of users by key: a Ray task for each part file, and tasks that add up the counts of many parts in a tree.

    part files -> tasks: the texts of one user at a time -> their keys, at most c -> counts of the part    (private)
    counts of 16 parts -> a task -> their sum -> ... -> counts of all parts, which alone the driver reads  (private)

Counts are whole numbers in private files, written whole and named by what they are counted from: a killed run does
again only what it had not finished, and a run on another corpus begins anew. Nothing is drawn here, nothing charged.
What a user is counted for is a function of their own texts, of released or public names, and of the key, to the bit:
they are read by themselves, and the bound is that of the mechanism (`ThresholdedCounts.contribution`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.console import Told
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.files import private_directory
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import Private, Seal, digest_json
from rayprivacy.corpus.manifest import part_tables
from rayprivacy.knowledge.names import Names, english
from rayprivacy.knowledge.reading import Reader, Vote
from rayprivacy.knowledge.settings import KnowledgeConfig
from rayprivacy.release.thresholded import KeySums, ThresholdedCounts
from rayprivacy.runs.questions_folder import write_table
from rayprivacy.work.mapping import on_numbers

TOGETHER = 16  # counts that one task adds up
_STEP = "counting users"
_SEAL = Seal(ReleaseError, "nothing was charged for it, run again with --resume")
_SUMS = pa.schema([("key", pa.large_string()), ("users", pa.int64())])
KeysOf = Callable[[Key, str, list[str]], list[str]]  # of a user and their texts


@dataclass(frozen=True)
class Asked:
    """What is asked of each user's texts: which names are there; or, of some `names`, what is not `settled` yet."""

    config: KnowledgeConfig
    names: tuple[str, ...] | None = None
    settled: Collection[tuple[str, str]] = frozenset()

    @property
    def question(self) -> str:
        """Digest of all that decides the answers of a text beside the recipe."""
        words = sorted(english()) if self.names is None else None
        return digest_json([words, self.names, sorted(self.settled), version("PyStemmer")])

    def known(self) -> Iterator[list[str]]:
        """The known answers to each question, as keys: by public settings and released names alone, never by counts."""
        answers = self.config.known(self.names or ())
        for name, attribute in product(self.names or (), answers):
            keys = [Vote(name, attribute, str(each)).key for each in answers[attribute] if each != name]
            if keys and (name, attribute) not in self.settled:
                yield keys

    def reader(self) -> KeysOf:
        """What reads one user's texts."""
        if self.names is None:
            found = Names(self.config)
            return lambda key, user, texts: found.of(texts, partial(key.integer, "knowledge names", user))
        reader = Reader(self.config, self.names)

        def answers(key: Key, user: str, texts: list[str]) -> list[str]:
            order = partial(key.integer, "knowledge answers", user)
            return [vote.key for vote in reader.votes(texts, order, self.settled)]

        return answers


@dataclass(frozen=True)
class Counting:
    """The settings of a task; holds no row of the corpus, and no secret."""

    asked: Asked
    mechanism: ThresholdedCounts
    shards: Path  # folder of the part files
    key_path: Path
    folder: Path  # where counts are written, named by all that decides them

    def file(self, level: int, number: int) -> Path:
        """Counts of a part, at level 0, or sums of those of the level below."""
        return self.folder / f"sums-{level}-{number:05d}.parquet"


def counted(job: Counting, parts: int, told: Told) -> Private[KeySums]:
    """How many users have each key; `told` hears how many parts are done. Ray must be started.

    Raises:
        ReleaseError: a task failed; nothing was charged.
    """
    private_directory(job.folder)
    level, width = 0, parts
    left = [part for part in range(parts) if not job.file(0, part).exists()]
    told(parts - len(left))
    for done, _ in enumerate(on_numbers(_count_part, job, left, _STEP, _SEAL), start=1):
        told(parts - len(left) + done)
    while width > 1:
        level, below, width = level + 1, width, -(-width // TOGETHER)
        left = [number for number in range(width) if not job.file(level, number).exists()]
        for _ in on_numbers(_add_up, (job, level, below), left, _STEP, _SEAL):
            pass
    return _sums(job.file(level, 0))


@_SEAL.around(_STEP)
def _count_part(job: Counting, part: int) -> None:
    found = part_counts(job, part, load_key(job.key_path))
    columns = [[*found], [*found.values()]]
    write_table(pa.table(columns, schema=_SUMS), job.file(0, part))


def part_counts(job: Counting, part: int, key: Key) -> Counter[str]:
    """How many users of a part have each key; one file of it at a time is in memory."""
    found, keys_of = Counter[str](), job.asked.reader()
    for rows in part_tables(job.shards, part):
        own = defaultdict[str, list[str]](list)
        for user, text in zip(rows["user"].to_pylist(), rows["text"].to_pylist(), strict=True):
            own[user].append(text)
        for user, texts in own.items():
            words = keys_of(key, user, texts)
            found.update(job.mechanism.contribution(key, [user] * len(words), words))
    return found


@_SEAL.around(_STEP)
def _add_up(common: tuple[Counting, int, int], number: int) -> None:
    job, level, below = common
    files = [job.file(level - 1, each) for each in range(number * TOGETHER, min((number + 1) * TOGETHER, below))]
    tables = pa.concat_tables([pq.read_table(path, schema=_SUMS) for path in files])
    added = tables.group_by("key").aggregate([("users", "sum")])
    write_table(pa.table([added["key"], added["users_sum"]], schema=_SUMS), job.file(level, number))


@_SEAL.around(_STEP)
def _sums(path: Path) -> Private[KeySums]:
    found = pq.read_table(path)
    return Private(dict(zip(found["key"].to_pylist(), found["users"].to_pylist(), strict=True)))
