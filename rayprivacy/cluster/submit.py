"""Submit a job once, whatever happened to it before.

    no job of this id           -> submit
    pending or running          -> attach: it is this very job
    succeeded                   -> nothing to do
    failed or stopped           -> delete the record, submit again: the run resumes, and pays nothing twice

Ray's record of a job is not what prevents a second charge (the ledger does, by release id and input digest); it
prevents that two drivers of one release work at the same time.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ray.job_submission import JobStatus, JobSubmissionClient

from rayprivacy.cluster.client import one_sentence
from rayprivacy.cluster.job import Job
from rayprivacy.cluster.parcel import parcel
from rayprivacy.core.errors import ClusterError, ConfigError

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
