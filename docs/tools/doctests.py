"""Examples in docstrings are shown as code: Markdown would take their `>>>` for quotations."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Put every block of a docstring that begins with `>>>` between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = "\n\n".join(map(_fenced, obj.docstring.value.split("\n\n")))


def _fenced(block: str) -> str:
    start = block.lstrip()
    if not start.startswith(">>>"):
        return block
    margin = block[: len(block) - len(start)].lstrip("\n")
    return f"{margin}```pycon\n{block}\n{margin}```"
