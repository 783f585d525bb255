"""What each unit adds to the sum of a step, to the bit: seen on the way from clipping to the engine."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.clipping import Lazy
from rayprivacy.models.norms.terms import Dense, Weights


class Watched:
    """Clipped gradients that pass through unchanged, while the contribution of every unit is noted."""

    def __init__(self, gradients: Any) -> None:
        self._gradients, self.parameters = gradients, gradients.parameters
        self.seen: Counter[int] = Counter()  # how many units made each contribution

    def __call__(self, losses: Callable[[], Tensor], rows_per_unit: int, live: bool = True) -> Lazy:
        lazy: Lazy = self._gradients(losses, rows_per_unit, live)
        self.seen.update(contributions(lazy))
        return lazy


def contributions(lazy: Lazy) -> Iterable[int]:
    """A number for the bits of every unit's clipped gradient, for the units of a batch that have one."""
    held = [clipped_sum.args for clipped_sum in lazy.values()]  # type: ignore[attr-defined]
    pairs = [(arguments[-2][0], _coefficients(arguments[-1])) for arguments in held]
    for unit in range(max(len(coefficients) for _, coefficients in pairs)):
        parts = [_part(gradient, unit, coefficients) for gradient, coefficients in pairs]
        found = hash(tuple(0 if part is None else _number(part) for part in parts))
        if found != hash((0,) * len(parts)):
            yield found


def _number(part: Tensor) -> int:
    bits = part.flatten().contiguous().view(torch.int64 if part.dtype == torch.float64 else torch.int32).long()
    return int((bits * (2 * torch.arange(len(bits)) + 1)).sum())  # modulo 2^64; the factors are odd


def _coefficients(weights: Weights) -> Tensor:
    if weights.kept is None:
        return weights.values
    whole = torch.zeros(int(weights.kept.max()) + 1 if len(weights.kept) else 0)
    return whole.index_put_((weights.kept,), weights.values)


def _part(gradient: Any, unit: int, coefficients: Tensor) -> Tensor | None:
    if gradient is None or unit >= len(coefficients):
        return None
    one = torch.zeros_like(coefficients)
    one[unit] = coefficients[unit]
    with torch.no_grad():
        alone = Weights.of(one)
        found: Tensor = gradient.add_sum(None, alone) if isinstance(gradient, Dense) else gradient.weighted_sum(alone)
    return found


class Seen(NamedTuple):
    """Contributions and their sum."""

    each: Counter[int]
    total: Tensor


def of_batches(gradients: Any, losses: Callable[[Batch], Tensor], batches: Iterable[Batch]) -> Seen:
    """Of all units of some batches."""
    watched, total = Watched(gradients), 0.0
    for batch in batches:
        lazy = watched(lambda batch=batch: losses(batch), batch.rows_per_unit)
        total = total + torch.cat([clipped_sum().double().flatten() for clipped_sum in lazy.values()])
    return Seen(watched.seen, torch.as_tensor(total))
