"""The toy on one local Ray."""

from pathlib import Path

import pytest
from toy_bench import Bench


@pytest.fixture
def bench(tmp_path: Path, tiny_base: Path, local_ray: Path) -> Bench:
    return Bench(tmp_path, tiny_base)
