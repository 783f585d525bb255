"""Discrete Gaussian and Laplace noise from OpenDP, exact integers from the operating system's entropy.

Floating-point noise leaks through its low bits; the discrete Gaussian and the discrete Laplace of Canonne, Kamath &
Steinke (2020) are sampled exactly on integers and have nothing below them. No seed exists, so no draw can be repeated:
what must be the same tomorrow is stored, not redrawn.
"""

import numpy as np
import numpy.typing as npt
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian, make_laplace
from opendp.metrics import l1_distance, l2_distance
from opendp.mod import enable_features

# From OpenDP's modules: its prelude takes a second to import in every process, for extras that are not needed here.
enable_features("contrib")


def add_discrete_gaussian(signal: npt.NDArray[np.int64], std: float) -> npt.NDArray[np.int64]:
    """Add independent discrete Gaussian noise of standard deviation `std` to each integer of a vector."""
    measurement = make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=std)
    return np.asarray(measurement(signal.tolist()), dtype=np.int64)


def add_discrete_laplace(signal: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.int64]:
    """Add independent discrete Laplace noise to each integer of a vector: n with a chance like exp(-|n| / `scale`)."""
    measurement = make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)
    return np.asarray(measurement(signal.tolist()), dtype=np.int64)
