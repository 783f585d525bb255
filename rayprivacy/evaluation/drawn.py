"""Which texts are compared with which: samples of equal size, and a half of the real users as a perfect generator.

Real text is split in two halves without a common user. Synthetic text is compared with the first half, and so is the
second half: as many texts of real people whom the first half does not know. That is the best a generator can hope for,
and the reference of every figure. Distances of distributions depend on sample sizes, so both sides have equally many.
"""

from dataclasses import dataclass

import numpy as np

from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Indexes, Texts, halves, sample


@dataclass(frozen=True)
class Drawn:
    """Texts that are compared, and which of them play which part.

    Attributes:
        real, synthetic, holdout: the drawn texts.
        target: places in `real` that synthetic text is compared with.
        compared: places in `synthetic`.
        reference: places in `real` of the other users, if there are any.
    """

    real: Texts
    synthetic: Texts
    holdout: Texts | None
    target: Indexes
    compared: Indexes
    reference: Indexes | None


def draw(real: Texts, synthetic: Texts, holdout: Texts | None, config: EvaluationConfig) -> Drawn:
    """Draw at most `max_texts` of each corpus, and give them their parts."""
    ours = real.take(sample(len(real), config.max_texts, config.seed))
    theirs = synthetic.take(sample(len(synthetic), config.max_texts, config.seed + 1))
    held = None if holdout is None else holdout.take(sample(len(holdout), config.max_texts, config.seed + 2))
    parts = halves(ours.users, config.seed)
    target, reference = parts or (np.arange(len(ours)), None)
    size = min(len(theirs), len(target if reference is None else reference))
    if reference is not None:
        reference = reference[sample(len(reference), size, config.seed)]
    return Drawn(ours, theirs, held, target, sample(len(theirs), size, config.seed), reference)
