"""The method that docs/new_method.md writes is complete: its code is taken from the page, registered, and run."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import ray
from timeouts import patience
from zygote import fork

import rayprivacy as rp

ROOT = Path(rp.__file__).parent.parent
FENCE = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AGAIN = """
import json
from pathlib import Path

def line_states():
    with rp.Ledger.open(recipe.privacy.ledger) as ledger:
        ledger.verify()
        return [line.state for line in ledger.lines(recipe.privacy.account)]

first = line_states()
rp.run(recipe, out="runs/lengths", dataset=corpus)
rp.run(recipe, out="runs/other", dataset=corpus)
try:
    rp.audit(result.path)
except rp.ConfigError as error:
    refused = str(error)
facts = {
    "texts": [row["text"] for row in result.texts().take_all()],
    "stages": [stage["name"] for stage in result.certificate.stages],
    "charges": [first, line_states()],
    "audit": refused,
    "report": Path(rp.report(result.path, public=True)).name,
    "left": [path.name for path in rp.clean(result.path).left],
}
Path("facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the files of the page, where the package is found as an installed one is."""
    folder = tmp_path_factory.mktemp("new_method")
    for name, code in FENCE.findall((ROOT / "docs" / "new_method.md").read_text()):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    installed = folder / f"{project['name']}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    return folder


def test_the_command_line_plans_it_without_torch(written):
    (written / "lengths.yaml").write_text("method: lengths\nprivacy: {epsilon: 2.0}\n")
    code = """
import sys
from rayprivacy.cli import app
app(["plan", "lengths.yaml"], standalone_mode=False)
assert not {"torch", "ray", "transformers"} & set(sys.modules)
"""
    assert {path.name for path in (written / "lengths").iterdir()} == {"card.py", "recipe.py", "plan.py", "method.py"}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(written), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=written, env=environment, capture_output=True, text=True, timeout=patience(500))
    assert done.returncode == 0, done.stderr
    words = " ".join(re.findall(r"[^\s│]+", done.stdout))
    for each in ("lengths of texts: 4", "epsilon 2", "times are estimates"):  # cells go on in the next line
        assert each in words


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs_and_has_the_rest_for_nothing(written, local_ray):
    (written / "again.py").write_text((written / "try_it.py").read_text() + AGAIN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(written), os.environ.get("PYTHONPATH", "")])}
    environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address  # it would start one of its own
    with (written / "said").open("w") as said:
        code = fork([str(written / "again.py")], None, environment, written, [said.fileno()] * 2).wait(timeout=500)
    assert code == 0, (written / "said").read_text()
    facts = json.loads((written / "facts.json").read_text())
    assert len(facts["texts"]) == 8
    assert facts["stages"] == ["lengths of texts", "all stages together"]
    assert facts["charges"] == [["committed"], ["committed"]], "a run that is repeated pays nothing"
    assert "releases no model" in facts["audit"]
    assert facts["report"] == "report-public.html"
    assert facts["left"] == []
