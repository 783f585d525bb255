"""Labels of sanitised documents: copied, which protects nothing of them, or answered by randomised response."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import ConfigError
from rayprivacy.sanitize.mechanism import Coins, RandomizedResponse, Tags
from rayprivacy.sanitize.settings import LabelsConfig


@dataclass(frozen=True)
class Labels:
    """The labels of a corpus, and how they are released; ConfigError where the listed values do not fit them."""

    config: LabelsConfig
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.is_randomized:
            return
        for name in self.columns:
            if name not in self.config.values:
                raise ConfigError(
                    f"sanitize.labels.values has no '{name}': list its public values, which are not to be learnt from"
                    " the corpus."
                )
        for name in self.config.values:
            if name not in self.columns:
                raise ConfigError(f"sanitize.labels.values has '{name}', which is no column of corpus.labels.")

    @property
    def is_randomized(self) -> bool:
        """Whether labels are answered by randomised response."""
        return self.config.kind == "randomize" and bool(self.columns)

    def event(self, records: int) -> MetricLocalDpEvent | None:
        """The charge for the labels of a number of records; None where they are copied, or there are none."""
        if not self.is_randomized:
            return None
        return MetricLocalDpEvent(self.config.epsilon, 1.0, records * len(self.columns))

    def released(self, rows: pa.Table, tags: Tags, coins: Coins) -> Mapping[str, pa.Array]:
        """The columns as they are released, of private rows and the tags of their documents, [rows]."""
        if not self.is_randomized:
            return {name: rows[name].combine_chunks().cast(pa.string()) for name in self.columns}
        return {name: self._randomized(name, rows[name].to_pylist(), tags, coins) for name in self.columns}

    def _randomized(self, name: str, values: list[str | None], tags: Tags, coins: Coins) -> pa.Array:
        known = self.config.values[name]
        places = {value: place for place, value in enumerate(known)}
        other = len(known)  # a missing label is none of the values, also where one of them is spelled 'None'
        ids = np.array([other if value is None else places.get(value, other) for value in values], dtype=np.int64)
        own = np.array([coins.tag("label", name, int(tag)) for tag in tags], dtype=np.uint64)
        positions = np.zeros(len(ids), dtype=np.uint32)
        drawn = RandomizedResponse(len(known), self.config.epsilon).draw(ids, own, positions, coins)
        return pa.array([known[each] for each in drawn.tolist()], pa.string())
