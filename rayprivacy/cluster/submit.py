"""Submit a job once, whatever happened to it before.

    no job of this id           -> submit
    pending or running          -> attach: it is this very job
    succeeded                   -> nothing to do
    failed or stopped           -> delete the record, submit again: the run resumes, and pays nothing twice

Ray's record of a job is not what prevents a second charge (the ledger does, by release id and input digest); it
prevents that two drivers of one release work at the same time.

A token is read from a file and travels in the Authorization header alone. Ray's own ways work too: RAY_AUTH_MODE=token
with RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN, or ~/.ray/auth_token) in the environment of the one who submits.

The job's own files travel to the cluster. With a working directory its files travel too, less what `.rayignore` and
`.gitignore` name: that is meant for code that the cluster's image lacks. Corpora, runs, ledgers and keys are named
there.
"""

import asyncio
import logging
import os
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
import requests
from ray._private.runtime_env.packaging import create_package
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from rayprivacy.cluster.job import Job
from rayprivacy.cluster.paths import NEVER
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


@contextmanager
def parcel(files: dict[str, str], working_dir: Path | None = None) -> Iterator[str]:
    """A directory, or a zip file, that Ray can upload; it is gone at the end."""
    if working_dir is not None and not working_dir.is_dir():
        raise ConfigError(f"--working-dir is {working_dir}, which is no directory: name one, or leave the option out.")
    with tempfile.TemporaryDirectory(prefix="rayprivacy-submit-") as scratch:
        if working_dir is not None:
            yield str(_zipped(working_dir.resolve(), files, Path(scratch) / "working-dir.zip"))
            return
        for name, text in files.items():
            (Path(scratch) / name).write_text(text)
        yield scratch


def _zipped(directory: Path, files: dict[str, str], target: Path) -> Path:
    # Ray packs it as it packs any working directory, so that its rules on what to leave out are the usual ones.
    create_package(str(directory), target, include_gitignore=True, excludes=NEVER, logger=None)
    with zipfile.ZipFile(target, "a") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return target


# Ray looks after a job once a second, and takes a new one of the same id for dead when it looks once more after the
# record was deleted: so the record is left alone until that has surely happened.
SETTLE_SECONDS = 5.0
POLL_SECONDS = 1.0
START_SECONDS = 120.0  # a dashboard answers before the agent of its node does
_NOT_YET = "No available agent"
EXIT_CODES = (0, 1, 2, 3)


class JobOutcome(StrEnum):
    """What submitting did."""

    SUBMITTED = "submitted"
    RESUBMITTED = "resubmitted"
    ATTACHED = "attached"
    DONE = "done"


@dataclass(frozen=True)
class Submission:
    """A job on the cluster, by its submission id; `logged` characters of its log are of earlier attempts."""

    id: str
    outcome: JobOutcome
    logged: int = 0


def submit(client: JobSubmissionClient, job: Job, working_dir: Path | None = None) -> Submission:
    """Submit a job, or find it."""
    address = client.get_address()
    with one_sentence(address):
        found = find(client, job.id)
    if found is None:
        _send(client, job, working_dir)
        return Submission(job.id, JobOutcome.SUBMITTED)
    if found.status in (JobStatus.FAILED, JobStatus.STOPPED):
        return _again(client, job, working_dir)
    _same_work(job, found, address)
    return Submission(job.id, JobOutcome.DONE if found.status == JobStatus.SUCCEEDED else JobOutcome.ATTACHED)


def follow(client: JobSubmissionClient, submission: Submission, show: Callable[[str], None]) -> int:
    """Show a job's log until it ends, without what earlier attempts logged; returns its exit code (see `exit_code`)."""
    with one_sentence(client.get_address()):
        asyncio.run(_tail(client, submission, show))
        details = _ended(client, submission.id)
    return exit_code(details)


def exit_code(details: Any) -> int:
    """The exit code of a job that ended, as the command line documents them; 1 for one that was stopped or killed."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    code = details.driver_exit_code
    return code if code in EXIT_CODES and code != 0 else 1


def find(client: JobSubmissionClient, job_id: str) -> Any | None:
    """Ray's record of a job, if there is one."""
    return next((found for found in client.list_jobs() if found.submission_id == job_id), None)


def _send(client: JobSubmissionClient, job: Job, working_dir: Path | None) -> None:
    until = time.monotonic() + START_SECONDS
    with parcel(job.files, working_dir) as folder, one_sentence(client.get_address()):
        while True:
            try:
                client.submit_job(
                    entrypoint=job.entrypoint,
                    submission_id=job.id,
                    runtime_env={"working_dir": folder},
                    metadata=dict(job.metadata),
                )
                return
            except RuntimeError as error:
                if _NOT_YET not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(POLL_SECONDS)


def _again(client: JobSubmissionClient, job: Job, working_dir: Path | None) -> Submission:
    with one_sentence(client.get_address()):
        time.sleep(SETTLE_SECONDS)
        logged = len(client.get_job_logs(job.id))
        client.delete_job(job.id)
    _send(client, job, working_dir)
    return Submission(job.id, JobOutcome.RESUBMITTED, logged)


def _same_work(job: Job, found: Any, address: str) -> None:
    if (found.metadata or {}).get("fingerprint") == job.fingerprint:
        return
    where = (found.metadata or {}).get("out", "another directory")
    raise ConfigError(
        f"the cluster at {address} has release {job.id} ({found.status.lower()}, in {where}) with another --out, "
        f"account, key, generation or evaluation: wait for it, then run `ray job delete {job.id} --address {address}`."
    )


async def _tail(client: JobSubmissionClient, submission: Submission, show: Callable[[str], None]) -> None:
    skip = submission.logged
    async for piece in client.tail_job_logs(submission.id):
        if new := piece[skip:]:
            show(new)
        skip = max(0, skip - len(piece))


def _ended(client: JobSubmissionClient, job_id: str) -> Any:
    while True:  # the log ends a moment before the record does
        details = client.get_job_info(job_id)
        if details.status.is_terminal():
            return details
        time.sleep(POLL_SECONDS)


def failure_of(client: JobSubmissionClient, job_id: str) -> None:
    """Say why a job never started, which its log does not."""
    with one_sentence(client.get_address()):
        details = client.get_job_info(job_id)
    if details.status == JobStatus.FAILED and details.driver_exit_code is None:
        raise ClusterError(f"job {job_id} did not start: {(details.message or 'Ray gives no reason').splitlines()[0]}")
