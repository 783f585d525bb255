"""Control codes: the labels of a text, written in front of it (Yue et al., ACL 2023, section 3).

A code such as `topic: Mozart or Beethoven? | stars: 5` stands before each private text when a model is trained,
and before each synthetic text when it is sampled, so that synthetic text has labels, in chosen shares.

Privacy: the values must be a public list of the recipe, never the distinct values found in the corpus. A record whose
value is not on the list, or missing, gets the value `other`: no record is dropped, and a rare private value shows
nowhere. The shares of the codes are private; they are released as a noisy histogram, or not used at all (uniform).

>>> codes = Codes(CodesConfig(values={"stars": ("1", "5")}), ("stars",))
>>> codes.cells, codes.index({"stars": "5"}), codes.index({"stars": "4"}), codes.labels(2)
(3, 1, 2, {'stars': 'other'})
>>> codes.text(1)
'stars: 5\\n'
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.names import Label
from rayprivacy.core.private import digest_json
from rayprivacy.release.histogram import NOISE, check_cells

OTHER = "other"


class CodesConfig(Config):
    """The `codes` block of a recipe.

    Attributes:
        values: for each of corpus.labels, its public values; `other` is always one more.
        histogram: release how often each combination occurs, with noise and for a charge; if false, all are equal.
        noise_multiplier: sigma of that release, noise std / L2 sensitivity; None lets a recipe take 5, or more
            where its epsilon is below 3 (see `release.histogram.small_vote_noise`).
    """

    values: dict[str, tuple[Label, ...]] = Field(default={})
    histogram: bool = True
    noise_multiplier: float | None = Field(default=None, gt=0)

    @field_validator("values")
    @classmethod
    def _lists_of_distinct_lines(cls, values: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for label, listed in values.items():
            if not listed:
                raise ValueError(f"label '{label}' has an empty list: give its public values")
            if len(set(listed)) < len(listed):
                raise ValueError(f"label '{label}' has a value twice: give each once")
            if any(len((value + ".").splitlines()) > 1 for value in listed):  # a last line break counts too
                raise ValueError(f"label '{label}' has a value of several lines: a control code is one line")
        return values

    @property
    def sigma(self) -> float:
        """The noise multiplier that a recipe has filled in."""
        return self.noise_multiplier or NOISE


class Codes:
    """Every combination of label values, numbered: cell 0 has each label's first value, the last label runs fastest."""

    def __init__(self, config: CodesConfig, labels: Sequence[str]) -> None:
        for label in labels:
            if label not in config.values:
                raise ConfigError(f"codes.values has no list for label '{label}': add its public values.")
        for label in config.values:
            if label not in labels:
                raise ConfigError(
                    f"codes.values has a list for '{label}', which is none of corpus.labels: add it there, or take the"
                    " list out, e.g. with -o codes.values={} where the corpus has no labels."
                )
        self.columns = tuple(labels)
        self._given = [config.values[label] for label in labels]
        self._values = [tuple(dict.fromkeys((*config.values[label], OTHER))) for label in labels]
        self._places = [{value: place for place, value in enumerate(values)} for values in self._values]
        self.cells = math.prod(map(len, self._values))
        check_cells(self.cells)

    @property
    def digest(self) -> str:
        """Names the cells: which labels there are, and their values in order."""
        return digest_json([list(self.columns), [list(values) for values in self._values]])

    @property
    def uniform(self) -> npt.NDArray[np.float64]:
        """Equal shares, float64 [cells]."""
        return np.full(self.cells, 1 / self.cells)

    @property
    def listed(self) -> npt.NDArray[np.float64]:
        """Equal shares of the combinations of public values: none for `other`, unless a list has it."""
        given = [OTHER in listed for listed in self._given]
        of_list = [
            all(known or value != OTHER for known, value in zip(given, self.labels(cell).values(), strict=True))
            for cell in range(self.cells)
        ]
        return np.array(of_list) / sum(of_list)

    def index(self, labels: Mapping[str, str | None]) -> int:
        """The cell of a record; a value that is missing, null or not listed counts as `other`."""
        cell = 0
        for column, places in zip(self.columns, self._places, strict=True):
            value = labels.get(column)
            known = value if value in places else OTHER
            cell = cell * len(places) + places[str(known)]
        return cell

    def labels(self, cell: int) -> dict[str, str]:
        """The values of a cell, by label."""
        values: list[str] = []
        for listed in reversed(self._values):
            cell, place = divmod(cell, len(listed))
            values.append(listed[place])
        return dict(zip(self.columns, reversed(values), strict=True))

    def text(self, cell: int) -> str:
        """The control code of a cell: one line, or nothing where there are no labels."""
        parts = [f"{column}: {value}" for column, value in self.labels(cell).items()]
        return " | ".join(parts) + "\n" if parts else ""

    def prefix(self, row: Mapping[str, str | None]) -> str:
        """The control code of a record, from its labels."""
        return self.text(self.index(row))

    def draw(self, shares: npt.NDArray[np.float64], n: int, seed: int) -> list[int]:
        """The cells of n texts, in an order that the public seed decides.

        How many texts a cell gets is decided by largest remainders, not by chance: n times its share, rounded down,
        and one more for those that lost most by rounding (the first of equals). So no further chance is added to the
        noise of the release; a cell with much less than 1/n may get none.
        """
        if shares.shape != (self.cells,):
            raise ReleaseError(f"there are {len(shares)} shares for {self.cells} codes: release the histogram anew.")
        exact = n * shares / shares.sum()
        counts = np.floor(exact).astype(np.int64)
        largest = np.argsort(counts - exact, kind="stable")[: n - int(counts.sum())]
        counts[largest] += 1
        ordered = np.repeat(np.arange(self.cells), counts)
        cells: list[int] = np.random.default_rng(seed).permutation(ordered).tolist()
        return cells


class CodedPrompts(Sequence[tuple[int, str]]):
    """The prompts of cells, (cell, its control code), made when they are asked for."""

    def __init__(self, cells: Sequence[int], codes: Codes) -> None:
        self._cells = cells
        self._texts = {cell: codes.text(cell) for cell in set(cells)}

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: Any) -> Any:
        """One prompt, or a list of them for a slice."""
        if isinstance(index, slice):
            return [(cell, self._texts[cell]) for cell in self._cells[index]]
        return self._cells[index], self._texts[self._cells[index]]
