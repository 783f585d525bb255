"""One local Ray for every test of the session: starting one costs seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Path]:
    """Start Ray on two CPUs; yields the session directory, where its logs are."""
    context = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield Path(context.address_info["session_dir"])
    ray.shutdown()
