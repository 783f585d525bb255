"""Sanitise a sharded corpus with Ray: one task for each part file, and one sorted file at the end.

    part files (private) -> tasks: keyed draws -> a block for each part (private until charged) -> one file

A block is named by the release's inputs and the number of parts, and written whole, so a killed run does again only
what it had not finished, with the same coins. Only part numbers travel; texts are read, and blocks written, where the
work is done. Rows of the file are in the order of their keyed ids, which says nothing about users, parts or the
corpus's own order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.files import private_directory, write_atomic
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import Seal
from rayprivacy.corpus.manifest import read_part
from rayprivacy.corpus.users import PLACE
from rayprivacy.sanitize.documents import Sanitizer, Words
from rayprivacy.sanitize.entities import Surrogates, detector_of
from rayprivacy.sanitize.labels import Labels
from rayprivacy.sanitize.mechanism import Coins, Mechanism, Tags
from rayprivacy.sanitize.settings import SanitizeConfig
from rayprivacy.work.mapping import on_numbers

DOCUMENT = "document"
_STEP = "sanitising"
_SEAL = Seal(ReleaseError, "nothing was released, run again with --resume")


@dataclass(frozen=True, eq=False)
class SanitiseJob:
    """The settings of a task; holds no row of the corpus, and no secret."""

    config: SanitizeConfig
    words: tuple[str, ...]  # the public vocabulary
    mechanism: Mechanism
    labels: Labels
    shards: Path  # folder of the part files
    key_path: Path
    release: tuple[str, ...]  # account, release id and keyed digest of its inputs
    folder: Path  # where blocks are written

    def sanitizer(self, key: Key, coins: Coins) -> Sanitizer:
        """The sanitizer with the coins of this release."""
        config = self.config
        return Sanitizer(
            words=Words(self.words),
            mechanism=self.mechanism,
            detector=detector_of(config.detector, config.entities),
            surrogates=Surrogates(coins, key if config.consistent else None, *self.release),
            coins=coins,
            most=config.max_tokens,
            keep_layout=config.layout == "keep",
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the released file, and of each of its blocks, those without rows included."""
        labels = ((name, pa.string()) for name in self.labels.columns)
        return pa.schema([(DOCUMENT, pa.string()), ("text", pa.large_string()), *labels])

    def block(self, part: int) -> Path:
        """The file of a sanitised part."""
        return self.folder / f"block-{part:05d}.parquet"


def sanitise_parts(job: SanitiseJob, parts: int) -> Iterator[int]:
    """Sanitise every part that is not done yet; yields each part once, as it is finished. Ray must be started."""
    private_directory(job.folder)
    left = [part for part in range(parts) if not job.block(part).exists()]
    yield from (part for part in range(parts) if part not in left)
    yield from (part for part, _ in on_numbers(_sanitise_part, job, left, _STEP, _SEAL))


@_SEAL.around(_STEP)
def _sanitise_part(job: SanitiseJob, part: int) -> None:
    key = load_key(job.key_path)
    coins = Coins(key, *job.release)
    table = sanitise_table(read_part(job.shards, part), job, key, coins)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(job.block(part), sink.getvalue().to_pybytes())


def sanitise_table(rows: pa.Table, job: SanitiseJob, key: Key, coins: Coins) -> pa.Table:
    """Rows of a part, sanitised: keyed document id, text and labels."""
    tags = tags_of(rows, coins)
    texts = job.sanitizer(key, coins).sanitise(rows["text"].to_pylist(), tags)
    columns = {DOCUMENT: [f"{tag:016x}" for tag in tags.tolist()], "text": texts}
    return pa.table({**columns, **job.labels.released(rows, tags, coins)}, schema=job.schema)


def tags_of(rows: pa.Table, coins: Coins) -> Tags:
    """The tags of the documents of a part, [rows]: keyed names of their places in the source (see `corpus.layout`).

    What a document says is no part of it, and neither are other documents, labels, or how many parts there are.
    """
    places = zip(rows["user"].to_pylist(), rows[PLACE].to_pylist(), strict=True)
    return np.array([coins.tag(user, place) for user, place in places], dtype=np.uint64)


def write_release(job: SanitiseJob, parts: int, path: Path) -> None:
    """All blocks as one file, in the order of document ids."""
    blocks = pa.concat_tables([_block(job, part) for part in range(parts)])
    pq.write_table(blocks.take(pc.sort_indices(blocks[DOCUMENT])), path, compression="zstd")


def _block(job: SanitiseJob, part: int) -> pa.Table:
    found = pq.read_table(job.block(part))
    if found.schema != job.schema:
        raise ReleaseError(f"{job.block(part).name} has other columns than the release: delete it, and use --resume.")
    return found
