"""One local Ray for all tests of a process: starting one costs seconds."""

from pathlib import Path

import pytest
import ray


@pytest.fixture(scope="module")
def local_ray() -> Path:
    """Ray on two CPUs, started once; returns the session directory, where its logs are.

    Every file asks again, because files that run between two of these may have shut it down to start a cluster. Nobody
    shuts it down here: Ray does when the process ends.
    """
    options = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "ignore_reinit_error": True}
    return Path(ray.init(address="local", **options).address_info["session_dir"])
