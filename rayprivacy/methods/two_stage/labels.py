"""The columns of synthetic text beside the text: the tree it was written from, and the functions of that tree."""

from collections.abc import Sequence

from rayprivacy.corpus.trees import functions, parsed


class TreeLabels:
    """The trees of some prompts, by their number.

    >>> TreeLabels(['(Yield (Today))']).labels(0)
    {'parse': '(Yield (Today))', 'functions': 'Yield Today'}
    """

    columns = ("parse", "functions")

    def __init__(self, trees: Sequence[str]) -> None:
        self._trees = trees

    def labels(self, cell: int) -> dict[str, str]:
        """The tree of a prompt as it was written, and its functions; what is no tree has none."""
        tree = parsed(self._trees[cell])
        return {"parse": self._trees[cell], "functions": " ".join(functions(tree)) if tree else ""}
