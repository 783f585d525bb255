"""Twenty seconds of nonsense: every input is answered, or refused with a sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz_ledger.py"


@pytest.mark.slow
def test_twenty_seconds_of_nonsense_are_refused_in_sentences() -> None:
    command = [sys.executable, str(FUZZ), "--seconds", "20", "--seed", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout)
    assert found["failures"] == []
    assert found["accepted"] > 10
    assert found["refused"] > 50
    assert found["cases"] == found["accepted"] + found["refused"] + len(found["slow"])
