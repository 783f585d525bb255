"""Ray for a while: a private local cluster by default, or one to join."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rayprivacy.core.errors import ClusterError
from rayprivacy.runs.recipe import LOCAL


@contextmanager
def ray_session(address: str) -> Iterator[None]:
    """Start Ray here (`local`) or join a cluster; leave it again at the end. A running session is used as it is.

    Logs stay on the workers: nothing that private code prints reaches the driver's terminal.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:  # one machine has no node that could be taken away
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what failed is said once, in our own words
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises bare exceptions here, and nothing private has been read yet
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise ClusterError(
            f"resources.address is '{address}' and Ray did not start there ({reason}): check the address, or how busy"
            " this machine is, and run the same command again."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
