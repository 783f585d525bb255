"""A row of the evaluation: one figure for synthetic text, and beside it what real text of other users scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rayprivacy.evaluation.bootstrap import Figure

Better = Literal["higher", "lower", "near"]


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        group: what it is about, e.g. fidelity.
        name: of the figure.
        better: whether a higher or lower value is better, or the one that is near the reference.
        synthetic: what synthetic text scores; None if it does not apply to it.
        reference: what real text of other users scores, the best that can be hoped for; None without such users.
        by_embedding: the same for each embedding, where `synthetic` and `reference` are averages over embeddings.
    """

    group: str
    name: str
    better: Better
    synthetic: Figure | None
    reference: Figure | None = None
    by_embedding: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON, without what it does not have."""
        found: dict[str, Any] = {"group": self.group, "name": self.name, "better": self.better}
        for side, figure in (("synthetic", self.synthetic), ("reference", self.reference)):
            found[side] = None if figure is None else figure.value
            if figure is not None and figure.low is not None:
                found[f"{side}_interval"] = [figure.low, figure.high]
        if self.by_embedding:
            found["by_embedding"] = {name: dict(values) for name, values in self.by_embedding.items()}
        return found


def paired(
    group: str,
    better: Mapping[str, Better],
    synthetic: Mapping[str, Figure | float],
    reference: Mapping[str, Figure | float] | None,
) -> list[Row]:
    """A row for each figure that `better` names, in its order."""
    return [
        Row(group, name, wanted, _figure(synthetic.get(name)), _figure((reference or {}).get(name)))
        for name, wanted in better.items()
        if name in synthetic or name in (reference or {})
    ]


def _figure(value: Figure | float | None) -> Figure | None:
    return Figure(float(value)) if isinstance(value, int | float) else value
