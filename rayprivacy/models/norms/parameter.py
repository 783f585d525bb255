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

    def __init__(self, terms: list[Term], rows_per_unit: int) -> None:
        """From the terms of rows, consecutive rows making up a unit."""
        self._terms = _joined(terms, rows_per_unit)

    def squared(self) -> Tensor:
        """Squares of bounds from above on the norms, float64 [units]; NaN or infinite for a unit that is.

        No weighted sum below is longer than the bounds times the weights, up to float32 rounding (see `terms`).
        """
        parts = [term.squared() for term in self._terms]
        squared = sum((part[0] for part in parts[1:]), parts[0][0])
        length = sum((part[1] for part in parts[1:]), parts[0][1])
        for rows in self._terms[1:]:
            if isinstance(rows, Rows) and isinstance(self._terms[0], Outer):
                squared = squared + 2 * rows.inner(self._terms[0])
        norm = (squared.clamp(min=0) + MARGIN * length.square()).sqrt()
        return (norm + self._terms[0].rounding * length).square()

    def weighted_sum(self, weights: Weights) -> Tensor:
        """The weighted sum over units, in the parameter's shape: float64 of `Dense` terms, else float32."""
        total: Tensor | None = None
        for term in self._terms:
            total = term.add_sum(total, weights)
        assert total is not None
        return total


def _joined(terms: list[Term], rows_per_unit: int) -> list[Term]:
    """The same gradients, of units, as one term, or as an `Outer` and a `Rows`."""
    dense = [term.by_unit(rows_per_unit) for term in terms if isinstance(term, Dense)]
    outer = _side_by_side([term for term in terms if isinstance(term, Outer)], rows_per_unit)
    rows = _one_after_another([term for term in terms if isinstance(term, Rows)], rows_per_unit)
    if outer is not None and (dense or outer.short):
        dense, outer = [*dense, outer.dense()], None
    if dense:
        whole = Dense(sum((term.values for term in dense[1:]), dense[0].values))
        return [whole if rows is None else rows.add_to(whole)]
    return [term for term in (outer, rows) if term is not None]


def _side_by_side(terms: list[Outer], rows_per_unit: int) -> Outer | None:
    if not terms:
        return None
    return Outer(_cat([term.left for term in terms]), _cat([term.right for term in terms])).by_unit(rows_per_unit)


def _one_after_another(terms: list[Rows], rows_per_unit: int) -> Rows | None:
    if not terms:
        return None
    ids, right = _cat([term.ids for term in terms]), _cat([term.right for term in terms])
    return Rows(ids, right, terms[0].shape).by_unit(rows_per_unit)


def _cat(sides: list[Tensor]) -> Tensor:
    return sides[0] if len(sides) == 1 else torch.cat(sides, 1)
