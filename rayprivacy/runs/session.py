"""What runs while a run goes on: Ray, a private local cluster by default, and the service of the run's ledger.

The service is a Ray actor through which workers on other nodes charge, and which exports gauges. The driver starts it,
because a ledger that is a file is on the driver's node, and workers may not be.

Whoever sees Ray's dashboard, metrics or folder sees how many rows there are (docs/soundness.md, the boundary). So a Ray
of our own has no dashboard and no metrics, and its folder is the owner's. Ray's own ports stay, and ask for its token.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

from rayprivacy.core.errors import ClusterError
from rayprivacy.ledger.client import LedgerClient, close_service
from rayprivacy.ledger.service import Address, find_service
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.runs.recipe import LOCAL

_QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
_DASHBOARD = "ray.dashboard.optional_deps"  # what Ray tries to import before it starts the dashboard's agent
_TEMPORARY = "/tmp"  # noqa: S108 - a folder of a drawn name is made in it
_LONGEST = 28  # characters, so that names of sockets below it are short enough


@contextmanager
def ray_session(address: str) -> Iterator[None]:
    """Start Ray here (`local`) or join a cluster; leave it again at the end. A running session is used as it is.

    Logs stay on the workers: nothing that private code prints reaches the driver's terminal.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what failed is said once, in our own words
    with _own_folder() if address == LOCAL else nullcontext() as folder:
        try:
            _start_own(folder) if folder else ray.init(address=address, **_QUIET)
        except Exception as error:  # Ray raises bare exceptions here, and nothing private has been read yet
            reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            raise ClusterError(
                f"resources.address is '{address}' and Ray did not start there ({reason}): check the address, or how"
                " busy this machine is, and run the same command again."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _own_folder() -> Iterator[str]:
    """Where Ray keeps logs and rows that find no room in memory, for the owner alone; it goes when the run ends."""
    parent = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or _TEMPORARY
    if len(parent) > _LONGEST or not Path(parent).is_dir():
        parent = _TEMPORARY
    with TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True) as folder:  # made with mode 0700
        yield f"{folder}/r"  # Ray lets everybody into the folder that it is given, but not into the one around it


def _start_own(folder: str) -> None:
    """Start a Ray as where it is installed without its dashboard, whose agent would listen for requests."""
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # no node of one machine is taken away
    # By default workers give way to whatever else runs on the machine, and a run beside other work takes a day.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("AUTOSCALER_METRIC_PORT", "-1")  # there is no such port, and the monitor goes on without
    known = sys.modules.get(_DASHBOARD)
    sys.modules[_DASHBOARD] = None  # type: ignore[assignment]  # Ray cannot import it
    try:
        ray.init(address=LOCAL, _temp_dir=folder, _system_config={"enable_metrics_collection": False}, **_QUIET)
    finally:
        del sys.modules[_DASHBOARD]
        if known:
            sys.modules[_DASHBOARD] = known
    with suppress(OSError, RuntimeError):  # Ray writes the token of this user, if there is a home, for all to read
        Path("~/.ray/auth_token").expanduser().chmod(0o600)


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
