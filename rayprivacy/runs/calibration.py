"""A cache of calibrated noise, so that a plan is computed once and shown at once afterwards.

The least noise that fits a budget takes seconds to find by privacy loss distributions, and depends on public numbers
alone. It is kept in the user's cache, under a digest of these numbers and of the versions of the code that computes it.
What is kept is never trusted with the guarantee: the ledger prices whatever noise a run asks to charge.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from rayprivacy.core.files import Json, keep, kept_file
from rayprivacy.core.private import digest_json

_PACKAGES = ("rayprivacy", "dp-accounting", "numpy", "scipy")


def kept(compute: Callable[[], float], *inputs: Any) -> float:
    """A positive number, computed before or now from these inputs: all that it depends on, as JSON values."""
    return float(_kept(compute, lambda found: isinstance(found, int | float) and 0 < found < math.inf, inputs))


def kept_values(compute: Callable[[], Json], *inputs: Any) -> Json:
    """JSON values by name, computed before or now from inputs as in `kept`."""
    return dict(_kept(compute, lambda found: isinstance(found, dict), inputs))


def _kept(compute: Callable[[], Any], fits: Callable[[Any], bool], inputs: Sequence[Any]) -> Any:
    path = kept_file("noise", digest_json([*map(version, _PACKAGES), *inputs])[:32])
    with suppress(OSError, ValueError):  # not there, or damaged: it is computed again
        if path and fits(found := json.loads(path.read_text())):
            return found
    written = json.dumps(compute())
    keep(path, written.encode())
    return json.loads(written)
