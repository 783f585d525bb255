"""Some nonsense: every input is answered, or refused with a sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from effort import EFFORT

FUZZ = Path(__file__).parents[3] / "benchmarks" / "fuzz_ledger.py"


@pytest.mark.slow
@pytest.mark.timeout(300 + 10 * EFFORT)
def test_nonsense_is_refused_in_sentences():
    command = [sys.executable, str(FUZZ), "--cases", str(40 * EFFORT), "--seed", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["failures"] == []
    assert found["accepted"] > 3
    assert found["refused"] > 10
    assert found["cases"] == found["accepted"] + found["refused"] + len(found["slow"])
