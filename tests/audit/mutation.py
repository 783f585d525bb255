"""One bug that breaks a guarantee, as a change of the real code, and the test that must notice it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One bug.

    Attributes:
        name: of the case.
        bug: what is wrong, for docs/soundness.md.
        file: of the package.
        old, new: what is replaced by what.
        test: what must fail, as pytest names it.
    """

    name: str
    bug: str
    file: str
    old: str
    new: str
    test: str
