"""The release of a file: charged before it is written, and committed by its digest.

For mechanisms whose output is too large for a row of the ledger, such as a sanitised corpus. The ledger keeps the
digest of the file, and the file lies where the method puts it.

    reserve (durable) -> start (lease) -> write to a private place -> commit the digest -> move into place

A crash before the commit leaves a charge and perhaps a file that nobody has seen: it is written anew, with new noise,
under the same charge. A crash after the commit leaves the file in its private place, and the next attempt moves it. So
one file is ever seen of a release, as the charge says.

"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.private import RELEASE_SEAL, Released, digest_file
from rayprivacy.core.units import Protection
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import LedgerApi
from rayprivacy.release.gate import leased


@dataclass(frozen=True)
class FileRelease:
    """A file that is released once.

    `inputs` is the keyed digest of everything that the file is made of, and of the stage where a run releases several.
    The file ends at `path`, and lies in its private place `scratch` until it is committed, on the same file system.
    """

    account: str
    release_id: str
    inputs: str
    event: DpEvent
    protection: Protection
    path: Path
    scratch: Path


def release_file(ledger: LedgerApi, release: FileRelease, write: Callable[[Path], None]) -> Released[Path]:
    """Charge, write and commit once; returns the place of the file that the ledger names.

    `write` writes the file, with fresh noise, to the path that it is given. A release whose file was made before and is
    not there any more is refused; so is one that the account has too little left for, before anything is charged.
    """
    charge = ledger.reserve(
        release.account, release.release_id, release.inputs, release.event, protection=release.protection
    )
    started = leased(ledger, charge)
    if started.state is not ChargeState.COMMITTED:
        write(release.scratch)
        ledger.commit_output(started, digest_file(release.scratch).encode())
    committed = (ledger.output(started) or b"").decode()
    if release.scratch.exists() and digest_file(release.scratch) == committed:
        release.scratch.replace(release.path)
    if not release.path.exists() or digest_file(release.path) != committed:
        raise ReleaseError(
            f"release '{release.release_id}' was made before, and its file is not here: use that one, or change the"
            " recipe's seed, which is another release and another charge."
        )
    return Released(release.path, release.release_id, RELEASE_SEAL)
