"""Members and non-members of a run: users or records with their texts, drawn by key from its private shards.

Held-out users were left out by a coin of their own, so they differ from training users by nothing else, which is what a
membership test needs. Which units are drawn depends on the key alone; nothing here prints what it holds.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import MANIFEST, part_tables, read_manifest

Row = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Drawn:
    """One user or record that the audit looks at, by its first rows with text and labels; it does not print itself."""

    rows: tuple[Row, ...]

    @property
    def user(self) -> str:
        """Whose it is."""
        return str(self.rows[0]["user"])


@dataclass(frozen=True, repr=False)
class Population:
    """The private shards of a run, without the users who are left out, such as canaries."""

    shards: Path
    unit: PrivacyUnit
    key: Key
    left_out: Set[str] = frozenset()

    def check(self) -> None:
        """Require shards that are whole, and at least one user who was held out."""
        if not (self.shards / MANIFEST).is_file():
            raise ConfigError(
                f"{self.shards} holds no shards: without them nobody knows who was in the run, so audit it before"
                " `rayprivacy clean`, on the machine that has its private files."
            )
        found = read_manifest(self.shards)
        found.check_files(self.shards)
        if not found.holdout.rows:
            raise ConfigError(
                f"corpus.holdout = {found.holdout_share:g} kept nobody aside, so there is nobody to compare training"
                " users with: make a new run with a larger corpus.holdout, and audit that."
            )

    def members(self, most: int, records: int) -> list[Drawn]:
        """At most `most` training units, each with its first `records` rows."""
        return self._drawn(map(self._kept, self._training()), most, records)

    def others(self, most: int, records: int) -> list[Drawn]:
        """At most `most` held-out units, likewise."""
        return self._drawn(map(self._kept, part_tables(self.shards, HOLDOUT)), most, records)

    def training_texts(self) -> Iterator[str]:
        """All texts of training users, file by file."""
        for table in self._training():
            for row in self._kept(table):
                yield str(row["text"])

    def everybody(self) -> Iterator[pa.Table]:
        """The rows of held-out and of training users, file by file: user, text and labels, without canaries."""
        hidden = pa.array(sorted(self.left_out), pa.string())
        for table in chain(part_tables(self.shards, HOLDOUT), self._training()):
            rows = table.drop_columns(["shard", "record"])
            yield rows.filter(pc.invert(pc.is_in(rows["user"].cast(pa.string()), hidden)))

    def training_users(self, among: Set[str]) -> set[str]:
        """Which of some users took part in the training."""
        return {user for table in self._training() for user in table["user"].unique().to_pylist() if user in among}

    def _training(self) -> Iterator[pa.Table]:
        """The rows of training users, file by file."""
        for part in range(len(read_manifest(self.shards).parts)):
            yield from part_tables(self.shards, part)

    def _kept(self, table: pa.Table) -> list[Row]:
        return [row for row in table.to_pylist() if row["user"] not in self.left_out]

    def _drawn(self, parts: Iterable[list[Row]], most: int, records: int) -> list[Drawn]:
        units = (unit for rows in parts for unit in self._units(rows, records))
        return [drawn for _, drawn in heapq.nsmallest(most, units, key=lambda unit: unit[0])]

    def _units(self, rows: list[Row], records: int) -> Iterator[tuple[int, Drawn]]:
        if self.unit is PrivacyUnit.RECORD:
            for row in rows:
                yield self.key.integer("audit", row["user"], row["text"]), Drawn((row,))
            return
        for user, own in groupby(rows, key=lambda row: str(row["user"])):
            yield self.key.integer("audit", user), Drawn(tuple(own)[:records])
