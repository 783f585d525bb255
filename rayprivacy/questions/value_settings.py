"""How the value of questions is learnt, and which questions are kept; this file imports no more than a plan needs."""

from typing import Literal

from pydantic import Field

from rayprivacy.core.config import Config

KeepBy = Literal["measured", "none", "random", "roundtrip", "likelihood", "classifier", "ranking", "value"]


class ValueConfig(Config):
    """How values are learnt.

    Attributes:
        iterations: of each estimator.
        batch: questions of an iteration.
        inner_steps: of plain SGD by which a reader learns from a selection.
        inner_batch: questions of such a step.
        inner_rate: of learning in such a step.
        learning_rate: of the estimator, by Adam.
        rollouts: selections of an iteration, which are compared with each other.
        estimators: whose values are averaged.
        reward: what a reader gains on annotations: in log-probability (`loss`), or in questions answered (`em`), as
            published; an answer more or less says little of twenty steps (benchmarks/questions_qve.py).
    """

    iterations: int = Field(default=600, ge=1)
    batch: int = Field(default=80, ge=1)
    inner_steps: int = Field(default=20, ge=1)
    inner_batch: int = Field(default=4, ge=1)
    inner_rate: float = Field(default=0.5, gt=0)
    learning_rate: float = Field(default=0.001, gt=0)
    rollouts: int = Field(default=8, ge=1)
    estimators: int = Field(default=4, ge=1)
    reward: Literal["em", "loss"] = "loss"


class KeepConfig(Config):
    """Which questions are kept.

    Attributes:
        by: `measured` is the one of the others that serves a reader best on annotations that no value was learnt from.
        share: of the questions, by the kinds that rank or draw them.
    """

    by: KeepBy = "measured"
    share: float = Field(default=0.6, gt=0, le=1)
