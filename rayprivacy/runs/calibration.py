"""A cache of calibrated noise, so that a plan is computed once and shown at once afterwards.

The least noise that fits a budget takes seconds to find by privacy loss distributions, and depends on public numbers
alone. It is kept in the user's cache, under a digest of these numbers and of the versions of the code that computes it.
What is kept is never trusted with the guarantee: the ledger prices whatever noise a run asks to charge.
"""

import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.files import user_cache, write_atomic

_PACKAGES = ("rayprivacy", "dp-accounting", "numpy", "scipy")


def kept(compute: Callable[[], float], *inputs: Any) -> float:
    """A positive number that was computed from these inputs before, or is now.

    Args:
        compute: finds the number; what it raises is not kept.
        inputs: everything that the number depends on, as JSON values.
    """
    name = digest_json([*map(version, _PACKAGES), *inputs])[:32]
    path = user_cache() / "noise" / name
    try:
        found = float(path.read_text())
        if math.isfinite(found) and found > 0:
            return found
    except (OSError, ValueError):
        pass  # not there, or damaged: it is computed again
    value = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, repr(value).encode())
    except OSError:
        pass  # a home that cannot be written to is no reason to stop
    return value
