"""The notebooks of the docs run as they stand, in a smaller version, and show what was printed when they were run."""

import json
import os
import re
from pathlib import Path

import pytest
from timeouts import patience
from zygote import fork

import rayprivacy as rp

ROOT = Path(rp.__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_run.ipynb"
EXECUTE = """
import json, pathlib, sys
sys.path.insert(0, "docs/tools")
from notebooks import execute
notebook, parameters, out = map(pathlib.Path, sys.argv[1:])
out.write_text(json.dumps(execute(notebook, parameters.read_text())))
"""
SMALLER = """
OUT = Path({out!r})
SMALL = {{
    **{{"model.base": {base!r}, "model.dtype": "float32", "corpus.max_records_per_user": 1}},
    **{{"teachers.count": 4, "teachers.stack": 4, "teachers.max_steps": 2, "teachers.max_tokens": 8}},
    **{{"votes.queries": 4, "votes.top_k": 10, "pseudo.texts": 8}},
    **{{"student.warm_steps": 1, "student.steps": 1, "generation.texts": 6, "generation.max_tokens": 6}},
    **{{"evaluation.users": 10, "evaluation.completions": 1, "evaluation.nonprivate_steps": 0}},
    **{{"evaluation.compare": 0}},
}}
"""


def _shown(notebook):
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", [])]
    return "".join(line for each in outputs for line in each.get("text", each.get("data", {}).get("text/plain", [])))


def test_the_notebook_was_executed_from_top_to_bottom_and_shows_no_path_of_a_machine():
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = _shown(notebook)
    assert "32 texts" in shown
    assert re.findall(r"(?<![\w/:.])/[\w.-]+/[\w./-]+", shown) == []
    assert "WARNING" not in shown


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_cells_run(tiny_base, tmp_path, zygotes):
    parameters = tmp_path / "parameters.py"
    parameters.write_text(SMALLER.format(out=str(tmp_path / "out"), base=str(tiny_base)))
    command = ["-c", str(NOTEBOOK), str(parameters), str(tmp_path / "executed.ipynb")]
    with (tmp_path / "said").open("w") as said:
        code = fork(command, EXECUTE, os.environ, ROOT, [said.fileno()] * 2).wait(timeout=patience(800))
    assert code == 0, (tmp_path / "said").read_text()
    shown = _shown(json.loads((tmp_path / "executed.ipynb").read_text()))
    for each in (
        *("6 texts, columns ['text']", "all stages together: epsilon 3.000", "lagged: ", "'report-public.html'"),
        "deleted: ['features', 'shards', 'source', 'teachers', 'votes-",
    ):
        assert each in shown
