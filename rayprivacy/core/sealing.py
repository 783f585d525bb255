"""Exceptions that carry no private text.

A parser quotes the row it failed on, and Ray carries that text to the driver, to its log files and to the dashboard.
So every function that Ray runs on private rows is sealed: the original exception is replaced, in the worker, by one
that says which step failed and with which type of exception. Our own errors are written without private text and pass.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from rayprivacy.core import errors
from rayprivacy.core.errors import RayPrivacyError

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

    def unwrap(self, step: str, error: BaseException) -> RayPrivacyError:
        """Find our own sentence in what Ray raised on the driver, or say which type of exception stopped the step.

        Ray hands over the worker's traceback as text, and drops the exception that caused it.
        """
        own = _OWN_ERROR.search(str(error))
        kind = getattr(errors, own[1], self.kind) if own else self.kind
        return kind(own[2]) if own else self._bare(step, error)

    def _bare(self, step: str, error: BaseException) -> RayPrivacyError:
        name = type(error).__name__
        return self.kind(f"{step} stopped with {name} (its text is withheld, it may be private): {self.remedy}.")
