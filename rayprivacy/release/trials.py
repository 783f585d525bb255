"""The secret number of trials of a hyper-parameter search, from the operating system's entropy.

The proof behind `accounting.selection` needs the number to be random, independent of the data and never known: it must
not be published, logged, shown on a dashboard, or be readable from how long a search took. No seed exists, so that it
cannot be drawn again; a search that restarts must keep the number it has, sealed.

>>> from dp_accounting import GaussianDpEvent
>>> draw_trials(RepeatAndSelectDpEvent(GaussianDpEvent(1.0), mean=10.0, shape=1.0)) >= 1
True
"""

import secrets
from fractions import Fraction

from dp_accounting.dp_event import RepeatAndSelectDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.accounting.selection import trials_from_uniform

_BITS = 256


def draw_trials(event: RepeatAndSelectDpEvent) -> int:
    """Draw how many trials to run. Secret: never publish or log it.

    It may be 0 in the Poisson case: publish a default that does not depend on the corpus then.

    Raises:
        EventError: the event is invalid.
        ConfigError: the mean is above 1e5.
    """
    validate(event)
    return trials_from_uniform(Fraction(secrets.randbits(_BITS), 2**_BITS), event.mean, event.shape)
