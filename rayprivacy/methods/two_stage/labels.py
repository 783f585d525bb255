"""The columns of synthetic text beside the text: the tree it was written from, and the names that occur in it."""

from collections.abc import Sequence

from rayprivacy.corpus.structures import names


class TreeLabels:
    """The trees of some prompts, by their number.

    >>> TreeLabels(['(Yield (Today))']).labels(0)
    {'parse': '(Yield (Today))', 'functions': 'Yield Today'}
    """

    columns = ("parse", "functions")

    def __init__(self, trees: Sequence[str], constants: frozenset[str] = frozenset()) -> None:
        self._trees = trees
        self._names = [names(tree, constants) or [] for tree in trees]

    @property
    def names(self) -> frozenset[str]:
        """All names that occur in the trees."""
        return frozenset(name for found in self._names for name in found)

    def labels(self, cell: int) -> dict[str, str]:
        """The tree of a prompt as it was written, and its functions (of JSON: its names); what is no tree has none."""
        return {"parse": self._trees[cell], "functions": " ".join(self._names[cell])}
