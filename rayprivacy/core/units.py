"""What is protected and by how much: privacy unit, neighbouring relation, budget; an account fixes all three."""

from dataclasses import dataclass
from enum import StrEnum

from rayprivacy.core.errors import ConfigError

MOST_EPSILON = 1e300  # sums of a few stay finite


class PrivacyUnit(StrEnum):
    """Whose presence is hidden: all text of one user, one record, or one phrase."""

    USER = "user"
    RECORD = "record"
    PHRASE = "phrase"


class NeighbouringRelation(StrEnum):
    """How two neighbouring corpora differ. The default is add-or-remove of one unit with zero-out semantics."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE = "replace"


class AccountKind(StrEnum):
    """What a guarantee means: central privacy of the corpus; metric local privacy of each token (SanText); selective
    privacy of what a public policy function calls sensitive. Epsilons of different kinds are never added.
    """

    CENTRAL = "central"
    METRIC_LOCAL = "metric-local"
    SELECTIVE = "selective"


@dataclass(frozen=True)
class Protection:
    """What an epsilon is about: only charges of the account's own protection are admitted to it.

    >>> print(Protection())
    central user/add-or-remove
    """

    unit: PrivacyUnit = PrivacyUnit.USER
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE
    kind: AccountKind = AccountKind.CENTRAL

    @property
    def is_word_for_word(self) -> bool:
        """Whether neighbours differ in words alone, which must not decide how many and how long documents are."""
        return self.kind is AccountKind.METRIC_LOCAL

    def __str__(self) -> str:
        return f"{self.kind} {self.unit}/{self.relation}"


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) cap; ConfigError for an epsilon outside (0, MOST_EPSILON] or a delta outside (0, 1).

    >>> Budget(3.0, 1e-6)
    Budget(epsilon=3.0, delta=1e-06)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MOST_EPSILON:
            raise ConfigError(
                f"privacy.epsilon is {self.epsilon}: give a positive finite number, e.g. 3.0; {MOST_EPSILON:g} at most."
            )
        if not 0 < self.delta < 1:
            raise ConfigError(f"privacy.delta is {self.delta}: give a number between 0 and 1, e.g. 1e-6.")
