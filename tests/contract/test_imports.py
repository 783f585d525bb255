"""What a command may import before it knows that it needs it: seconds of every call, and of every refusal."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "ray")


@pytest.mark.parametrize("module", ["rayprivacy.cli", "rayprivacy.methods.recipes"])
def test_the_command_line_and_the_recipes_are_light(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
