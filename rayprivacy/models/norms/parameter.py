"""All terms of one parameter's gradient: what counts is the norm of their sum, not the sum of their norms.

A weight may be used by several modules (an embedding tied to the output head) or several times by one. Terms of one
kind are put side by side, as if they were further positions, and Gram matrices then hold all products across uses. What
an embedding and a tied output head have in common is added. Leaving it out would make norms too small, by a factor of
up to sqrt(2) for two uses, and clipping too weak by as much.
"""

import torch
from torch import Tensor

from rayprivacy.models.norms.rows import Rows
from rayprivacy.models.norms.terms import Dense, Outer
from rayprivacy.models.norms.weights import Weights

MARGIN = 2 * torch.finfo(torch.float32).eps  # steps of rounding that are added to squared norms, see `terms`

Term = Dense | Outer | Rows


class ParameterGradient:
    """Gradients of one parameter for every unit, from all of its uses in one forward pass."""

    def __init__(self, terms: list[Term]) -> None:
        self._terms = _joined(terms)

    def squared(self) -> Tensor:
        """Squared norms, float32 [units], up to rounding never too small; NaN or infinite for a unit that is."""
        parts = [term.squared() for term in self._terms]
        squared = sum((part[0] for part in parts[1:]), parts[0][0])
        length = sum((part[1] for part in parts[1:]), parts[0][1])
        for rows in self._terms[1:]:
            if isinstance(rows, Rows) and isinstance(self._terms[0], Outer):
                squared = squared + 2 * rows.inner(self._terms[0])
        return squared.clamp(min=0) + MARGIN * length.square()

    def weighted_sum(self, weights: Weights) -> Tensor:
        """The weighted sum over units, float32, in the parameter's shape."""
        total: Tensor | None = None
        for term in self._terms:
            total = term.add_sum(total, weights)
        assert total is not None
        return total


def _joined(terms: list[Term]) -> list[Term]:
    """The same gradient as one term, or as an `Outer` and a `Rows`."""
    outer = [term for term in terms if isinstance(term, Outer)]
    dense = [term for term in terms if isinstance(term, Dense)]
    rows = [term for term in terms if isinstance(term, Rows)]
    first: Term | None = None
    if outer:
        side = _side_by_side(outer)
        first = side.dense() if side.short else side
    elif dense:
        first = Dense(torch.stack([term.values for term in dense]).sum(0)) if len(dense) > 1 else dense[0]
    if not rows:
        assert first is not None
        return [first]
    together = rows[0] if len(rows) == 1 else _one_after_another(rows)
    if isinstance(first, Dense):
        return [together.add_to(first)]
    return [together] if first is None else [first, together]


def _side_by_side(outer: list[Outer]) -> Outer:
    if len(outer) == 1:
        return outer[0]
    return Outer(torch.cat([term.left for term in outer], 1), torch.cat([term.right for term in outer], 1))


def _one_after_another(rows: list[Rows]) -> Rows:
    ids, right = torch.cat([term.ids for term in rows], 1), torch.cat([term.right for term in rows], 1)
    return Rows.summed(ids, right, rows[0].shape)
