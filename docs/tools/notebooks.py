"""A runner of notebooks: executes the code cells in this process and keeps what they print, without Jupyter.

    python docs/tools/notebooks.py docs/notebooks/first_run.ipynb

It writes the outputs into the file. A cell's value is shown where its last line is an expression, as Jupyter does. What
libraries print about themselves (bars, devices) is left out.
"""

import ast
import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def execute(path: Path, parameters: str | None = None) -> dict[str, Any]:
    """The notebook with the outputs of its cells, from a run in the working directory of this process.

    Args:
        path: the notebook.
        parameters: code that replaces the cell tagged `parameters`.
    """
    notebook: dict[str, Any] = json.loads(path.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        replaced = parameters is not None and "parameters" in cell["metadata"].get("tags", [])
        source = parameters if replaced else "".join(cell["source"])
        cell["outputs"] = _outputs(str(source), f"{path.name}, cell {number}", names, number)
        cell["execution_count"] = number
    return notebook


def _outputs(source: str, name: str, names: dict[str, Any], number: int) -> list[Cell]:
    printed, progress = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(progress):
        value = _run(source, name, names)
    outputs: list[Cell] = []
    for stream, text in (("stderr", progress), ("stdout", printed)):
        lines = [line for line in text.getvalue().splitlines(keepends=True) if line.strip()]
        if lines:
            outputs.append({"output_type": "stream", "name": stream, "text": lines})
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown})
    return outputs


def _run(source: str, name: str, names: dict[str, Any]) -> Any:
    """The value of the last line of a cell, if it is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)  # noqa: S102 - a notebook of this repository
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307 - the same


def main() -> None:
    """Execute a notebook, and write its outputs into it."""
    os.environ.update(TQDM_DISABLE="1", DS_ACCELERATOR="cpu")
    path = Path(sys.argv[1])
    path.write_text(json.dumps(execute(path), indent=1) + "\n")


if __name__ == "__main__":
    main()
