"""Calibrated noise that is computed once: for each run that begins, and in a cache that all plans share.

The least noise that fits a budget takes seconds to find by privacy loss distributions, and depends on public numbers
alone. It is kept in the user's cache, under a digest of these numbers and of the versions of the code that computes it.
What is kept is never trusted with the guarantee: the ledger prices whatever noise a run asks to charge.

A run that has begun keeps what it was calibrated to, whatever a later version would find: other noise would be other
charges, for work that was paid for. So its values lie in its own directory (`of_run`), under the inputs alone, and come
before the cache. They were enough for the budget when the run began, by the accountants of that day. Before they are
used again they are priced by those that are installed now, and refused where they cost more than was asked for.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, TypeVar

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, keep, kept_file
from rayprivacy.core.private import digest_json

T = TypeVar("T")
_PACKAGES = ("rayprivacy", "dp-accounting", "numpy", "scipy")
_of_run: ContextVar[Json | None] = ContextVar("calibrated values of a run", default=None)


@contextmanager
def of_run(values: Json) -> Iterator[None]:
    """Take what a run was calibrated to from `values`, meanwhile, and add what is computed to them."""
    token = _of_run.set(values)
    try:
        yield
    finally:
        _of_run.reset(token)


def kept(compute: Callable[[], float], is_enough: Callable[[float], bool], *inputs: Any) -> float:
    """A positive number, computed before or now from these inputs: all that it depends on, as JSON values.

    ConfigError where a run began with it, and it `is_enough` no more.
    """
    return float(_own(compute, is_positive, is_enough, inputs))


def kept_values(
    compute: Callable[[], Json], made: Callable[[Json], T], is_enough: Callable[[T], bool], *inputs: Any
) -> T:
    """What is `made` of JSON values by name, computed before or now from inputs as in `kept`.

    Values of which it cannot be made, whatever it raises of them, are damaged.
    """

    def fits(found: Any) -> bool:
        try:
            made(found)
        except Exception:  # noqa: BLE001 - files may hold anything, all of it public
            return False
        return True

    return made(_own(compute, fits, lambda found: is_enough(made(found)), inputs))


def is_positive(found: Any) -> bool:
    """Whether this is a positive number."""
    return isinstance(found, int | float) and 0 < found < math.inf


def _own(
    compute: Callable[[], Any], fits: Callable[[Any], bool], is_enough: Callable[[Any], bool], inputs: Sequence[Any]
) -> Any:
    """What the run began with; found in the cache or computed where it has not begun, or there is no run."""
    values, name = _of_run.get(), digest_json(list(inputs))[:32]
    if values is None:
        return _kept(compute, fits, inputs)
    if name not in values:
        values[name] = _kept(compute, fits, inputs)
    elif not (fits(values[name]) and is_enough(values[name])):
        raise ConfigError(
            f"the run began with noise ({values[name]}) that is damaged, or by the installed versions costs more than"
            " privacy.epsilon: finish it with the versions that it began with, or choose another --out for a new"
            " release."
        )
    return values[name]


def _kept(compute: Callable[[], Any], fits: Callable[[Any], bool], inputs: Sequence[Any]) -> Any:
    path = kept_file("noise", digest_json([*map(version, _PACKAGES), *inputs])[:32])
    with suppress(OSError, ValueError):  # not there, or damaged: it is computed again
        if path and fits(found := json.loads(path.read_text())):
            return found
    written = json.dumps(compute())
    keep(path, written.encode())
    return json.loads(written)
