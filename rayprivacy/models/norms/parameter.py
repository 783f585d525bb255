"""The gradient of one parameter, from all of its uses: what counts is the norm of their sum, not the sum of norms.

A weight may be used by several modules (an embedding tied to the output head) or several times by one. Terms of one
kind are put side by side, as if they were further positions, and Gram matrices then hold all products across uses. What
an embedding and a tied output head have in common is added. Leaving it out would make norms too small, by a factor of
up to sqrt(2) for two uses, and clipping too weak by as much.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from rayprivacy.models.norms.terms import MARGIN, Dense, Outer, Rows, Weights, product

Term = Dense | Outer | Rows


@dataclass(frozen=True, repr=False)
class ParameterGradient:
    """Gradients of one parameter for every unit, summed over all of its uses in one forward pass."""

    dense: Dense | None  # whole gradients; where they are there, they hold everything, and the other two are None
    outer: Outer | None  # what linear layers contribute, all of their positions side by side
    rows: Rows | None  # what embeddings contribute, all of their rows one after the other

    @staticmethod
    def of(terms: list[Term], rows_per_unit: int) -> "ParameterGradient":
        """From the terms of rows, consecutive rows making up a unit."""
        dense = [term.by_unit(rows_per_unit) for term in terms if isinstance(term, Dense)]
        outer = _side_by_side([term for term in terms if isinstance(term, Outer)], rows_per_unit)
        rows = _one_after_another([term for term in terms if isinstance(term, Rows)], rows_per_unit)
        if outer is not None and (dense or outer.short):
            dense.append(outer.dense())
            outer = None
        if not dense:
            return ParameterGradient(None, outer, rows)
        whole = dense[0] if len(dense) == 1 else Dense(reduce(torch.add, [term.values for term in dense]))
        return ParameterGradient(whole if rows is None else rows.add_to(whole), None, None)

    def squared(self) -> Tensor:
        """Squares of bounds from above on the norms, float64 [units]; NaN or infinite for a unit that is.

        No weighted sum below is longer than the bounds times the weights, up to float32 rounding (see `terms`).
        """
        if self.dense is not None:
            return self.dense.squared()
        squares, lengths = zip(*(term.squared() for term in (self.outer, self.rows) if term is not None), strict=True)
        squared: Tensor = reduce(torch.add, squares)
        length: Tensor = reduce(torch.add, lengths)
        if self.rows is not None and self.outer is not None:
            squared = squared + 2 * self.rows.inner(self.outer)
            squared = squared.where(squared.isfinite(), torch.inf)  # an overflow below zero would be no length at all
        margin, rounding = (MARGIN, 0.0) if self.outer is None else (self.outer.margin, self.outer.rounding)
        norm = (squared.clamp(min=0) + margin * length.square()).sqrt()
        return (norm + rounding * length).square()


def weighted_sum(gradients: list[ParameterGradient], weights: list[Weights]) -> Tensor:
    """The weighted sum over the units of all gradients, in the parameter's shape: float64 where one is `dense`.

    Gradients of one form are one product, however many they are.
    """
    pairs = list(zip(gradients, weights, strict=True))
    outer = [own.outer.scaled(few) for own, few in pairs if own.outer]
    dense = [(own.dense.values, few) for own, few in pairs if own.dense]
    total = product(_joined([left for left, _ in outer]).T, _joined([right for _, right in outer])) if outer else None
    for own, few in pairs:
        total = own.rows.add_sum(total, few) if own.rows else total
    if dense:
        kept = Dense(_joined([few.select(values) for values, few in dense]))
        whole = kept.sum(Weights(_joined([few.values for _, few in dense]), None))
        total = whole if total is None else whole.add_(total)
    assert total is not None
    return total


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


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
