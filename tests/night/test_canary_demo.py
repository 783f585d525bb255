"""The demo and its notebook, small: a tiny model learns by heart what it is shown often, and not under noise."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "jobs" / "canary_demo"

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def figures(tiny_base, tmp_path_factory):
    """What the notebook's cells compute, with other settings."""
    out = tmp_path_factory.mktemp("demo")
    (out / "key").write_bytes(b"one key, so that ranks are fixed")  # they scatter over a factor of ten
    (out / "key").chmod(0o600)
    training = {"sampling_rate": 0.5, "expected_batch": 400, "steps": 30, "chunk": 30, "max_records": 1}
    overrides = [
        f"model.base={tiny_base}", "model.dtype=float32", "corpus.max_records_per_user=1", "corpus.labels=[]",
        "codes={values: {}}", "adapter={kind: full, rank: 8}", f"training={json.dumps(training | {'max_tokens': 40})}",
        "training.optimizer.learning_rate=0.01", "generation={texts: 64, max_tokens: 40}",
        "resources={cpus: 1, actors: 1}",
    ]  # fmt: skip
    space: dict[str, Any] = {}
    cells = json.loads((DEMO / "demo.ipynb").read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace('"jobs/canary_demo"', repr(str(DEMO)))
            exec(compile(source, "demo.ipynb", "exec"), space)
            if "OUT" in space and "figures" not in space:
                space |= {"OUT": out, "REPETITIONS": (1, 15), "OVERRIDES": overrides}
    sys.path.remove(str(DEMO))
    assert json.loads((out / "canaries.json").read_text()) == space["figures"]
    return space["figures"]


def test_what_many_wrote_is_known_without_privacy_and_not_with_it(figures):
    often = [each for each in figures if each["users"] == 15]
    assert len(often) == 5
    without, private = (sum(math.log2(each[arm]["rank"]) for each in often) / 5 for arm in ("without", "with"))
    assert without < 3.5 < 6.0 < private  # guessing gives 8.5
    assert not any(each["with"]["verbatim"] for each in figures)
