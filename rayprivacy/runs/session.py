"""What runs while a run goes on: Ray, a private local cluster by default, and the service of the run's ledger.

The service is a Ray actor through which workers on other nodes charge, and which exports gauges. The driver starts it,
because a ledger that is a file is on the driver's node, and workers may not be.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from rayprivacy.core.errors import ClusterError
from rayprivacy.ledger.client import LedgerClient, close_service
from rayprivacy.ledger.service import Address, find_service
from rayprivacy.ledger.settings import PrivacyConfig
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


def ledger_address(privacy: PrivacyConfig, watched: bool) -> Address:
    """Where the ledger of a run is; `watched` if its service may export gauges."""
    key_path = Path(privacy.ledger_key).absolute() if privacy.ledger_key else None
    return Address.of(privacy.ledger, key_path, watched)


@contextmanager
def ledger_service(privacy: PrivacyConfig, watched: bool) -> Iterator[None]:
    """Start the service and stop it again, unless it was running already: others go on using it then."""
    address = ledger_address(privacy, watched)
    shared = find_service(address) is not None
    LedgerClient(address)
    try:
        yield
    finally:
        if not shared:
            close_service(address.url, address.key_path, watched)
