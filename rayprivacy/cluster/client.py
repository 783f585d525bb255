"""The client of a cluster's job server, and its errors as one sentence each.

A token is read from a file and travels in the Authorization header alone. Ray's own ways work too: RAY_AUTH_MODE=token
with RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN, or ~/.ray/auth_token) in the environment of whoever submits.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from rayprivacy.core.errors import ClusterError, ConfigError, KeyFileError

_QUIET = ("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging")
_OVERRIDES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers them to the address it is given


def connect(address: str, token_file: Path | None = None) -> JobSubmissionClient:
    """Find the job server."""
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"--address is '{address}': give the URL of the dashboard, e.g. http://127.0.0.1:8265.")
    for name in _QUIET:  # they report what we say in our own words
        logging.getLogger(name).setLevel(logging.WARNING)
    headers = {"Authorization": f"Bearer {read_token(token_file)}"} if token_file else None
    with one_sentence(address), _without_overrides():
        return JobSubmissionClient(address, headers=headers)


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read."""
    try:
        mode, token = stat.S_IMODE(path.stat().st_mode), path.read_text().strip()
    except (OSError, ValueError):
        raise KeyFileError(f"--token-file is {path}, which cannot be read: write the token into it.") from None
    if mode & 0o077:
        raise KeyFileError(f"--token-file is {path}, which others can read (mode {mode:04o}): run chmod 600 on it.")
    if not token or not token.isascii() or len(token.split()) != 1:
        raise KeyFileError(f"--token-file is {path}, which does not hold one token: write it on one line.")
    return token


@contextmanager
def one_sentence(address: str) -> Iterator[None]:
    """Turn what Ray's client raises into one of our errors."""
    try:
        yield
    except AuthenticationError:
        raise ConfigError(
            f"the cluster at {address} refuses the token, or got none: give the right one with --token-file."
        ) from None
    except (ConnectionError, requests.exceptions.ConnectionError, aiohttp.ClientError):
        raise ClusterError(
            f"nothing answers at {address}: is the cluster up, does it have a dashboard, and is there a tunnel to it?"
        ) from None
    except (requests.exceptions.RequestException, ValueError, KeyError):
        raise ClusterError(
            f"what answers at {address} is no Ray job server: give the dashboard's URL, whose port is usually 8265."
        ) from None
    except RuntimeError as error:
        raise ClusterError(f"the cluster at {address} refuses: {_first_line(error).rstrip('.')}.") from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines and lines[0].endswith("Traceback (most recent call last):") else "".join(lines[:1])


@contextmanager
def _without_overrides() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _OVERRIDES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
