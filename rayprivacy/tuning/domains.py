"""What a searched key may be: a range or a list, in the space file, for Optuna, and as one random draw.

>>> Domain(loguniform=(0.1, 10.0)).draw(random.Random(0)) < 10
True
>>> Domain(choice=(1, 2)).distribution()
CategoricalDistribution(choices=(1, 2))
"""

import math
import random
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import model_validator

from rayprivacy.core.config import Config

optuna.logging.set_verbosity(optuna.logging.ERROR)
Value = bool | int | float | str | None


class Domain(Config):
    """A range or a list: exactly one of the four is given.

    Attributes:
        uniform: lowest and highest real number.
        loguniform: the same, uniform in the logarithm; both positive.
        integers: lowest and highest whole number, both included.
        choice: the values themselves.
    """

    uniform: tuple[float, float] | None = None
    loguniform: tuple[float, float] | None = None
    integers: tuple[int, int] | None = None
    choice: tuple[Value, ...] | None = None

    @model_validator(mode="after")
    def _one_range(self) -> "Domain":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(type(self).model_fields)}, e.g. {{uniform: [0.1, 1.0]}}")
        ends = getattr(self, given[0])
        if given[0] == "choice":
            if len(set(ends)) < 2:
                raise ValueError("choice needs two different values or more: fix the key under `fixed` otherwise")
        elif not ends[0] < ends[1]:
            raise ValueError(f"{given[0]} is {list(ends)}: the first number must be below the second")
        if self.loguniform and self.loguniform[0] <= 0:
            raise ValueError(f"loguniform is {list(self.loguniform)}: both numbers must be positive")
        return self

    def distribution(self) -> BaseDistribution:
        """The same domain in Optuna's terms."""
        if self.choice is not None:
            return CategoricalDistribution(self.choice)
        if self.integers is not None:
            return IntDistribution(*self.integers)
        low, high = self.loguniform or self.uniform or (0.0, 0.0)
        return FloatDistribution(low, high, log=self.loguniform is not None)

    def draw(self, dice: random.Random) -> Any:
        """One value at random; independent draws are what `charging: select` tries."""
        if self.choice is not None:
            return dice.choice(self.choice)
        if self.integers is not None:
            return dice.randint(*self.integers)
        if self.loguniform is not None:
            low, high = self.loguniform
            return min(max(math.exp(dice.uniform(math.log(low), math.log(high))), low), high)
        return dice.uniform(*self.uniform) if self.uniform else None
