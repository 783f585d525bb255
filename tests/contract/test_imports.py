"""What a process may import before it knows that it needs it: seconds of every call, and hundreds of megabytes."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rayprivacy", ("torch", "transformers", "ray", "sklearn", "numpy", "pydantic", "sqlalchemy")),
        ("rayprivacy.cli", ("torch", "transformers", "ray", "sklearn")),
        ("rayprivacy.methods.registry", ("torch", "transformers", "ray", "sklearn")),
        ("rayprivacy.release.noise", ("sklearn", "polars", "torch")),
        ("rayprivacy.tuning.trainable", ("torch", "transformers", "dp_accounting")),
    ],
)
def test_who_needs_no_model_does_not_import_one(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import json, sys, {module}; print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_package_itself_takes_milliseconds() -> None:
    code = "import time; began = time.process_time(); import rayprivacy; print(time.process_time() - began)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.2
