"""Physical batches: the sampled units of one step, cut into rectangles of tokens that fit into memory.

A unit (user or record) is one or more documents; each document is a row, and the rows of one unit stay together, so
that the gradient of a unit can be summed up and clipped once. The loss of a unit is the mean loss of its target tokens:
its weights sum to 1 over all of its rows, whoever else is in the batch. How units are cut into batches therefore
changes time, memory and the order of floating-point sums, never what a unit contributes. It depends on the private
texts (how many are sampled, how long they are), so neither the number nor the shape of batches is logged or reported.

Least padding: units of a batch have the same number of rows, and within that number they are sorted by their longest
row. Padding goes to the right, where a causal model never looks at it.
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.core.errors import ConfigError

_WIDTH_STEP = 8


@dataclass(frozen=True, repr=False, eq=False)
class Document:
    """One private text as tokens.

    Attributes:
        ids: token ids, int32 [tokens].
        first_target: positions before it are context (start token, control code) and carry no loss. The first token of
            all follows on nothing and never carries loss.

    Raises:
        ConfigError: no position carries loss, so that the mean over them would not exist.
    """

    ids: npt.NDArray[np.int32]
    first_target: int

    def __post_init__(self) -> None:
        if not len(self.targets):
            raise ConfigError("a document has no token from first_target on: leave out records without text.")

    @property
    def targets(self) -> range:
        """The positions that carry loss."""
        return range(max(self.first_target, 1), len(self.ids))


@dataclass(frozen=True, repr=False, eq=False)
class Batch:
    """Whole units as padded rows: rows [i * rows_per_unit, (i + 1) * rows_per_unit) are unit i.

    Attributes:
        ids: token ids padded on the right, int64 [rows, width].
        weights: float32 [rows, width]; weights[r, t] is the weight of predicting ids[r, t] from ids[r, :t]: 0 for
            padding, for context and at t = 0. The weights of one unit sum to 1; those of a dummy are all 0.
        rows_per_unit: rows of each unit of this batch.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    rows_per_unit: int


def physical_batches(units: list[list[Document]], max_tokens: int, pad: int) -> list[Batch]:
    """Cut units, each of at least one document, into batches of at most `max_tokens` padded tokens.

    A unit that is larger by itself becomes a batch of its own. Widths are multiples of 8. The same units in the same
    order always give the same batches; without units there are none.
    """
    batches: list[Batch] = []
    for rows, same in groupby(sorted(units, key=lambda unit: (len(unit), _longest(unit)), reverse=True), key=len):
        held: list[list[Document]] = []
        for unit in same:
            # The first unit is the longest and sets the width.
            if held and (len(held) + 1) * rows * _width(held[0]) > max_tokens:
                batches.append(_batch(held, pad))
                held = []
            held.append(unit)
        batches.append(_batch(held, pad))
    return batches


def dummy_batch(pad: int) -> Batch:
    """One row of padding without weight, for a rank that has run out of batches where all ranks must run the model."""
    shape = (1, _WIDTH_STEP)
    return Batch(torch.full(shape, pad, dtype=torch.int64), torch.zeros(shape, dtype=torch.float32), 1)


def _batch(units: list[list[Document]], pad: int) -> Batch:
    shape = (len(units) * len(units[0]), _width(units[0]))
    ids, weights = np.full(shape, pad, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    row = 0
    for unit in units:
        weight = 1 / sum(len(document.targets) for document in unit)
        for document in unit:
            ids[row, : len(document.ids)] = document.ids
            weights[row, document.targets.start : document.targets.stop] = weight
            row += 1
    return Batch(torch.from_numpy(ids), torch.from_numpy(weights), len(units[0]))


def _width(unit: list[Document]) -> int:
    return -(-_longest(unit) // _WIDTH_STEP) * _WIDTH_STEP


def _longest(unit: list[Document]) -> int:
    return max(len(document.ids) for document in unit)
