"""Typed errors. Each message is one sentence that names the field, the value and the remedy, never private text."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STARVED = frozenset({"MemoryError", "OutOfMemoryError"})  # Python's and NumPy's; Ray's, and that of torch on a GPU
_OF_TORCH = "[enforce fail at alloc_cpu"  # on a CPU


def is_full(error: BaseException) -> bool:
    """Whether a disk that has no room left stopped something, whichever library says so.

    >>> is_full(OSError(errno.ENOSPC, "...")), is_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    (True, True)
    """
    return (isinstance(error, OSError) and error.errno in _FULL) or os.strerror(errno.ENOSPC) in str(error)


def is_starved(error: BaseException) -> bool:
    """Whether want of memory ended something, whichever library says so, or wraps what another one said.

    >>> is_starved(MemoryError()), is_starved(ValueError("MemoryError"))
    (True, False)
    """
    return any(
        _STARVED.intersection(kind.__name__ for kind in type(each).__mro__) or str(each).startswith(_OF_TORCH)
        for each in _wrapped(error)
    )


def _wrapped(error: BaseException) -> list[BaseException]:
    """An error and all that it holds: Ray Train's has that of each worker, in which is that of a task."""
    found = [error]
    for each in found:  # it grows
        held = [each.__cause__, *vars(each).values()]
        held += [inner for value in held if isinstance(value, Mapping) for inner in value.values()]
        found += [value for value in held if isinstance(value, BaseException) and value not in found]
    return found


class RayPrivacyError(Exception):
    """Base of every error a user is meant to read; `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(RayPrivacyError):
    """A recipe, an option or an argument is unknown, mistyped or out of range; `at` are the keys that lead to it."""

    exit_code = 2
    at: tuple[str | int, ...] = ()


class CorpusError(RayPrivacyError):
    """The corpus cannot be read as the recipe says (missing column, no text, one user only)."""

    exit_code = 2


class EventError(RayPrivacyError):
    """An accounting event is unknown, not finite or out of range, and is refused."""

    exit_code = 2


class BudgetRefusedError(RayPrivacyError):
    """The account has less left than the request; nothing was charged."""

    exit_code = 3


class LedgerError(RayPrivacyError):
    """The ledger refuses a transition, or its rows do not replay."""


class LedgerPlaceError(LedgerError):
    """What should name a ledger does not, or the ledger cannot be opened or written there."""

    exit_code = 2


class LeaseHeldError(LedgerError):
    """Another process is drawing this release: wait for it, its output will be served."""


class ReleaseError(RayPrivacyError):
    """A release would be incomplete, drawn twice or served for another input."""


class ShardError(RayPrivacyError):
    """Shards on disk do not match their manifest, or a user sits in two of them."""


class StorageError(RayPrivacyError):
    """A run kept in object storage cannot be read or written there, or another process works on it."""


class KeyFileError(RayPrivacyError):
    """The key file is missing, too open or not a 256-bit key."""

    exit_code = 2


class ClusterError(RayPrivacyError):
    """The Ray cluster cannot be reached, or it refuses a job."""


@contextmanager
def renamed(
    names: Mapping[str, str],
    caught: type[RayPrivacyError] = RayPrivacyError,
    raised: type[RayPrivacyError] = ConfigError,
) -> Iterator[None]:
    """Let errors name what was written: an option, say, in place of the key of a recipe that they know.

    >>> with renamed({"corpus.source": "--public"}):
    ...     raise CorpusError("corpus.source is 'a.txt'")
    Traceback (most recent call last):
    rayprivacy.core.errors.ConfigError: --public is 'a.txt'
    """
    try:
        yield
    except caught as error:
        message = str(error)
    else:
        return
    for key, name in names.items():
        message = message.replace(key, name)
    raise raised(message) from None
