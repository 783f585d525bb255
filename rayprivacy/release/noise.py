"""Exact noise and the secret number of a search's trials, from the operating system's entropy.

Floating-point noise leaks through its low bits; the discrete Gaussian and the discrete Laplace of Canonne, Kamath &
Steinke (2020), from OpenDP, are sampled exactly on integers and have nothing below them. No seed exists, so no draw can
be repeated: what must be the same tomorrow is stored, not redrawn.

The proof behind `accounting.selection` needs the number of trials to be random, independent of the data and never
known: it must not be published, logged, shown on a dashboard, or be readable from how long a search took. A search that
restarts must keep the number it has, sealed.

>>> from dp_accounting import GaussianDpEvent
>>> draw_trials(RepeatAndSelectDpEvent(GaussianDpEvent(1.0), mean=10.0, shape=1.0)) >= 1
True
"""

import secrets
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian, make_laplace
from opendp.metrics import l1_distance, l2_distance
from opendp.mod import enable_features

from rayprivacy.accounting.events import validate
from rayprivacy.accounting.selection import trials_from_uniform

# From OpenDP's modules: its prelude takes a second to import in every process, for extras that are not needed here.
enable_features("contrib")
_BITS = 256


def add_discrete_gaussian(signal: npt.NDArray[np.int64], std: float) -> npt.NDArray[np.int64]:
    """Add independent discrete Gaussian noise of standard deviation `std` to each integer of a vector."""
    measurement = make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=std)
    return np.asarray(measurement(signal.tolist()), dtype=np.int64)


def add_discrete_laplace(signal: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.int64]:
    """Add independent discrete Laplace noise to each integer of a vector: n with a chance like exp(-|n| / `scale`)."""
    measurement = make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)
    return np.asarray(measurement(signal.tolist()), dtype=np.int64)


def draw_trials(event: RepeatAndSelectDpEvent) -> int:
    """Draw how many trials to run. Secret: never publish or log it.

    It may be 0 in the Poisson case: publish a default that does not depend on the corpus then.
    """
    validate(event)
    return trials_from_uniform(Fraction(secrets.randbits(_BITS), 2**_BITS), event.mean, event.shape)
