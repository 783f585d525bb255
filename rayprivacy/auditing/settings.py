"""The `audit` block of a recipe: it makes the run a rehearsal, with canaries in its corpus and attacks at its end."""

from pydantic import Field, field_validator

from rayprivacy.auditing.canaries import CanaryPlan
from rayprivacy.core.config import Config

LEAST_SHADOWS = 4


def check_shadows(shadows: int) -> int:
    """A number of shadow models with which each user has two that saw them, and two that did not."""
    if shadows % 2 or 0 < shadows < LEAST_SHADOWS:
        raise ValueError(f"give an even number, at least {LEAST_SHADOWS}, or 0 for none")
    return shadows


class AuditConfig(Config):
    """An audit run; leave the block out of a recipe whose release matters.

    Attributes:
        canaries: what is planted, each repetition as a user of its own.
        users: training users that are attacked, at most, and held-out ones.
        shadows: models that are trained like this one, each on half of the users, for the stronger attacks; each takes
            as long as this run.
    """

    canaries: CanaryPlan = CanaryPlan()
    users: int = Field(default=400, ge=1)
    shadows: int = Field(default=0, ge=0)

    _shadows = field_validator("shadows")(check_shadows)
