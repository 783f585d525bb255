"""Physical batches: the sampled units of one step, cut into rows, or rectangles, of tokens that fit into memory.

A unit (user or record) is one or more documents, which stay together, so that the gradient of a unit can be summed up
and clipped once. The loss of a unit is the mean loss of its target tokens: its weights sum to 1 over all of its
documents, whatever other units are in the batch.

The mean may be a weighted one: with `decay` d the t-th target of a document has t^-d of the first one's weight. Clipped
gradients of long and short documents have one norm, so with equal weights each token of a long one counts for less, the
first ones too, and a model learns to begin as short documents do. The faster weights fall, the less a document's length
changes what its first tokens count.

Privacy argument. One unit may change the sum of a step by its own clipped gradient and by nothing else, so the gradient
of every other unit must keep each of its bits, whichever units take part. Floating point does not give that by itself:
which kernel multiplies two matrices, and in which order it adds, depends on their shapes, and in bfloat16 a wider batch
moved the gradients in it by 0.8 % of C each. So no shape that a unit is computed in depends on other units:

- `rows`: units stand behind each other in rows of one length, which is all that a model is given, whoever is sampled.
  Attention and norms are taken piece by piece, in tensors of the piece's own shape (`models.packing`).
- `physical_batches`, on a GPU and for models and losses that cannot read such rows: the width of a batch is that of the
  unit's own longest document, all units of the batch have that width and that number of documents, and the batch has
  the same number of rows for that shape at every step: what units leave empty is filled with padding.

What is left to the kernels is that a row's result does not depend on the row's place in a matrix of a given shape, nor
on what stands in other rows. `independence` looks at that on the machine and the model at hand, before the first step.

How many units are sampled, and how long they are, is private: neither the number nor the shape of batches is logged or
reported. Padding goes to the right, where a causal model never looks at it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.packing import Pieces

_WIDTH_STEP = 8
_Weights = npt.NDArray[np.floating]
T = TypeVar("T")


@dataclass(frozen=True, repr=False, eq=False)
class Document:
    """One private text as tokens."""

    ids: npt.NDArray[np.int32]  # token ids, int32 [tokens]
    # positions before it are context (start token, control code) and carry no loss. The first token of all follows on
    # nothing and never carries loss.
    first_target: int
    redacted: bool = False  # whether it is a redacted copy, which a step without noise may read

    def __post_init__(self) -> None:
        if not len(self.targets):
            raise ConfigError("a document has no token from first_target on: leave out records without text.")

    @property
    def targets(self) -> range:
        """The positions that carry loss."""
        return range(max(self.first_target, 1), len(self.ids))


@dataclass(frozen=True, repr=False, eq=False)
class Batch:
    """Whole units as padded rows: [i * rows_per_unit, (i + 1) * rows_per_unit) are unit i, or padding at the end."""

    ids: torch.Tensor  # token ids padded on the right, int64 [rows, width]
    # float32 [rows, width]; weights[r, t] is the weight of predicting ids[r, t] from ids[r, :t]: 0 for padding, for
    # context and at t = 0. The weights of one unit sum to 1; those of padding rows are all 0.
    weights: torch.Tensor
    rows_per_unit: int  # rows of each unit of this batch
    redacted: bool = False  # whether all of its documents are redacted copies
    # for how many tokens a head is to compute logits at least. Where ranks share the weights, all of them have to use
    # each weight equally often.
    least_targets: int = 0

    @property
    def targets(self) -> int:
        """How many of its tokens carry loss; private."""
        return int(torch.count_nonzero(self.weights[:, 1:]))

    @property
    def by_unit(self) -> int:
        """What makes up a unit: so many rows."""
        return self.rows_per_unit


@dataclass(frozen=True, repr=False, eq=False)
class Row:
    """Whole units behind each other in one row of tokens: the inputs of a causal model, and what each is to predict.

    The last token of a document is predicted and not read. Rows of one length are filled up with padding.
    """

    ids: torch.Tensor  # token ids, int64 [1, tokens]
    positions: torch.Tensor  # of each token in its document, int64 [1, tokens]
    labels: torch.Tensor  # the token that follows on each, int64 [tokens]
    weights: torch.Tensor  # float32 [tokens], of predicting labels; those of one unit sum to 1
    documents: Pieces
    by_unit: Pieces  # what makes up a unit
    redacted: bool = False  # whether all of its documents are redacted copies
    least_targets: int = 0  # as in `Batch`
    states: torch.Tensor | None = None  # [1, tokens, width], where they are known below some layer (`lower_layers`)

    @property
    def targets(self) -> int:
        """How many of its tokens carry loss; private."""
        return int(torch.count_nonzero(self.weights))


def rows(units: list[list[Document]], tokens: int, pad: int, decay: float = 0.0) -> list[Row]:
    """Cut units, each of at least one document, into rows of `tokens` tokens, largest first, each where it fits first.

    A unit that is larger by itself becomes a row of its own, whose length is a function of the unit's. Without units
    there are no rows. Weights fall with the place of a token by the power `decay`.
    """
    held: list[list[list[Document]]] = []
    left: list[int] = []
    for unit in sorted(units, key=_read, reverse=True):
        size = _read(unit)
        at = next((at for at, room in enumerate(left) if size <= room), len(held))
        if at == len(held):
            held.append([])
            left.append(max(tokens - 1, size))
        held[at].append(unit)
        left[at] -= size
    return [row_of(some, tokens, pad, decay) for some in held]


def row_of(units: list[list[Document]], tokens: int, pad: int, decay: float = 0.0) -> Row:
    """The row of some units in their order; it is longer than `tokens` for a unit that is, and then alone in it."""
    needed = _read(units[0]) + 1
    tokens = tokens if needed <= tokens else _rounded(needed)
    ids, labels = np.full(tokens, pad, np.int64), np.full(tokens, pad, np.int64)
    weights, at = np.zeros(tokens, np.float32), 0
    weighted = _weighted(units, decay)
    for document, own in weighted:
        read = len(document.ids) - 1
        ids[at : at + read], labels[at : at + read] = document.ids[:-1], document.ids[1:]
        weights[at + document.targets.start - 1 : at + read] = own
        at += read
    documents = Pieces(tuple(len(document.ids) - 1 for document, _ in weighted), tokens)
    return Row(
        torch.from_numpy(ids)[None],
        documents.positions(),
        torch.from_numpy(labels),
        torch.from_numpy(weights),
        documents,
        Pieces(tuple(_read(unit) for unit in units), tokens),
        all(document.redacted for document, _ in weighted),
    )


def _read(unit: list[Document]) -> int:
    """How many tokens of a unit are read."""
    return sum(len(document.ids) - 1 for document in unit)


def physical_batches(units: list[list[Document]], max_tokens: int, pad: int, decay: float = 0.0) -> list[Batch]:
    """Cut units, each of at least one document, into batches of at most `max_tokens` padded tokens.

    The shape of a unit's batch is a function of the unit's own shape and of `max_tokens`. A unit that is larger by
    itself becomes a batch of its own. Widths are multiples of 8. Without units there are no batches. Weights fall with
    the place of a token by the power `decay`.
    """
    batches = []
    for (rows, width), same in groupby(sorted(units, key=_shape, reverse=True), key=_shape):
        held, at_once = list(same), max(1, max_tokens // (rows * width))
        for at in range(0, len(held), at_once):
            weighted = _weighted(held[at : at + at_once], decay)
            batches.append(_rectangle(weighted, (at_once * rows, width), pad, rows))
    return batches


def packed(units: list[list[Document]], max_tokens: int, pad: int, decay: float = 0.0) -> list[Batch]:
    """The documents of some units, packed by length into batches of at most `max_tokens` padded tokens.

    A batch is as large as what is in it, so this is for units that are clipped together and for no others. A document
    that is larger by itself becomes a batch of its own. Rows are of one unit each (`rows_per_unit` is 1), and the
    weights of one unit sum to 1 over all of its rows.
    """
    rows = sorted(_weighted(units, decay), key=lambda row: len(row[0].ids), reverse=True)
    batches = []
    while rows:
        width = _rounded(len(rows[0][0].ids))
        count = max(1, max_tokens // width)
        held, rows = rows[:count], rows[count:]
        batches.append(_rectangle(held, (len(held), width), pad, 1))
    return batches


def dummy_batch(pad: int) -> Batch:
    """One row of padding without weight, for a rank that has run out of batches where all ranks must run the model."""
    shape = (1, _WIDTH_STEP)
    return Batch(torch.full(shape, pad, dtype=torch.int64), torch.zeros(shape, dtype=torch.float32), 1)


def _weighted(units: list[list[Document]], decay: float) -> list[tuple[Document, _Weights]]:
    rows = []
    for unit in units:
        weights = [np.arange(1, len(each.targets) + 1) ** -decay for each in unit]
        whole = sum(float(each.sum()) for each in weights)
        rows += [(document, each / whole) for document, each in zip(unit, weights, strict=True)]
    return rows


def _rectangle(rows: list[tuple[Document, _Weights]], shape: tuple[int, int], pad: int, rows_per_unit: int) -> Batch:
    ids, weights = np.full(shape, pad, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    for row, (document, own) in enumerate(rows):
        ids[row, : len(document.ids)] = document.ids
        weights[row, document.targets.start : document.targets.stop] = own
    redacted = all(document.redacted for document, _ in rows)
    return Batch(torch.from_numpy(ids), torch.from_numpy(weights), rows_per_unit, redacted)


def _shape(unit: list[Document]) -> tuple[int, int]:
    longest = max(len(document.ids) for document in unit)
    return len(unit), _rounded(longest)


def _rounded(tokens: int) -> int:
    return -(-tokens // _WIDTH_STEP) * _WIDTH_STEP


def ahead(steps: Sequence[int], make: Callable[[int], T]) -> Iterator[tuple[int, T]]:
    """Each step with what `make` returns for it, in order; one more thread makes the next one meanwhile.

    So reading and padding hide behind the forward pass. `make` is called once for each step, in their order; its error
    is raised at that step.

    >>> list(ahead(range(3), lambda step: step * step))
    [(0, 0), (1, 1), (2, 4)]
    """
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming = [thread.submit(make, step) for step in steps[:1]]
        for at, step in enumerate(steps):
            made = coming.pop().result()
            coming += [thread.submit(make, following) for following in steps[at + 1 : at + 2]]
            yield step, made
