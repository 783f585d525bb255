"""Discrete Gaussian noise from OpenDP, exact integers from the operating system's entropy.

Floating-point Gaussian noise leaks through its low bits; the discrete Gaussian of Canonne, Kamath & Steinke (2020) is
sampled exactly on integers and has nothing below them. No seed exists, so no draw can be repeated: what must be the
same tomorrow is stored, not redrawn.
"""

import numpy as np
import numpy.typing as npt
import opendp.prelude as dp

dp.enable_features("contrib")


def add_discrete_gaussian(signal: npt.NDArray[np.int64], std: float) -> npt.NDArray[np.int64]:
    """Add independent discrete Gaussian noise of standard deviation `std` to each integer of a vector."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measurement = dp.m.make_gaussian(*space, scale=std)
    return np.asarray(measurement(signal.tolist()), dtype=np.int64)
