"""What is private, what has passed the gate, errors without private text, and digests that name bytes.

`Private` refuses to print or pickle itself, so private text reaches neither logs nor Ray arguments by accident.
`Released` is made by `rayprivacy.release` alone (a contract test checks what touches the seal).

A parser quotes the row it failed on, and Ray carries that text to the driver, to its log files and to the dashboard.
So every function that Ray runs on private rows is sealed: the original exception is replaced, in the worker, by one
that says which step failed and with which type of exception. Our own errors are written without private text and pass.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, final

import numpy as np
import numpy.typing as npt

from rayprivacy.core import errors
from rayprivacy.core.errors import ConfigError, RayPrivacyError, is_full, is_starved

T = TypeVar("T")
RELEASE_SEAL = object()


@final
class Private(Generic[T]):
    """A value computed from the private corpus; read it with `reveal`, inside private code only."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the private value; whatever is computed from it is private again."""
        return self._value

    def __repr__(self) -> str:
        return "Private(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Private value is never pickled, so it cannot become a Ray argument or a checkpoint")


@final
@dataclass(frozen=True)
class Released(Generic[T]):
    """A value that passed the release gate: its charge is in the ledger, and it is free to share."""

    value: T
    release_id: str  # the ledger's name of the release
    seal: object

    def __post_init__(self) -> None:
        if self.seal is not RELEASE_SEAL:
            raise TypeError("only the release gate makes Released values")


def digest_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_json_list(head: Any, items: Iterable[Any]) -> str:
    """`digest_json([head, [*items]])`, with one item in memory at a time.

    >>> digest_json_list("a", iter([1, [2, "b"]])) == digest_json(["a", [1, [2, "b"]]])
    True
    """
    digest = hashlib.sha256(f"[{_canonical(head)},[".encode())
    for place, item in enumerate(items):
        digest.update(f"{',' if place else ''}{_canonical(item)}".encode())
    digest.update(b"]]")
    return digest.hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value (sorted keys, no spaces, no NaN).

    >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    True
    """
    return digest_bytes(_canonical(value).encode())


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_array(array: npt.NDArray[Any]) -> str:
    """SHA-256 over dtype, shape and the C-ordered little-endian bytes of an array."""
    plain = np.ascontiguousarray(array)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    head = f"{plain.dtype.str}{plain.shape}".encode()
    return digest_bytes(head + plain.tobytes())


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


P = ParamSpec("P")
R = TypeVar("R")
_OWN_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Seal:
    """What a sealed function raises for a foreign exception: an error of one kind, with a remedy for the user."""

    kind: type[RayPrivacyError]
    remedy: str

    def around(self, step: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function on private rows: whatever it raises leaves as one sentence without their content."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
                failure: RayPrivacyError
                try:
                    return function(*args, **kwargs)
                except RayPrivacyError as error:
                    failure = type(error)(*error.args)
                except Exception as error:  # noqa: BLE001 - any exception may quote private rows
                    failure = self._bare(step, error)
                # Raised outside the except block, so that no __context__ drags the original along.
                raise failure

            return guarded

        return decorate

    def each(self, step: str, values: Iterator[T]) -> Iterator[T]:
        """Pass on values; what computing the next one raises leaves as `around` says."""
        advance: Callable[[Iterator[T], object], Any] = self.around(step)(next)
        end = object()
        while (value := advance(values, end)) is not end:
            yield value

    def unwrap(self, step: str, error: BaseException) -> RayPrivacyError:
        """Find our own sentence in what Ray raised on the driver, or name the type of exception that stopped it."""
        own = _OWN_ERROR.search(str(error))
        kind = getattr(errors, own[1], self.kind) if own else self.kind
        return kind(own[2]) if own else self._bare(step, error)

    def _bare(self, step: str, error: BaseException) -> RayPrivacyError:
        if is_full(error):
            return ConfigError(f"{step} found no room on a disk: make room, and run the same command with --resume.")
        if is_starved(error):
            return self.kind(
                f"{step} was ended for want of memory: lower resources.batch_tokens, let fewer processes work at once,"
                f" or take machines with more memory; {self.remedy}."
            )
        name = type(error).__name__
        return self.kind(f"{step} stopped with {name} (its text is withheld, it may be private): {self.remedy}.")
