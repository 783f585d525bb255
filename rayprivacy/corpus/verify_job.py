"""The verification of shards as Ray tasks, file by file; the driver learns that it is done, or one sentence.

How many files a corpus has is private where parts are split: see `piecework`.
"""

from functools import partial
from pathlib import Path
from typing import Any

from rayprivacy.core.keys import load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import ShardManifest, read_manifest
from rayprivacy.corpus.phrases import PhraseFile
from rayprivacy.corpus.piecework import Bench, Piece, work_off
from rayprivacy.corpus.verify import SEAL, check_unit, verify_file

_STEP = "verifying the shards"


@SEAL.around(_STEP)
def verify_with_ray(out: Path, key_path: Path, unit: PrivacyUnit, phrases: PhraseFile | None = None) -> None:
    """Do what `verify_shards` does. Ray must be started."""
    manifest = read_manifest(out)
    check_unit(manifest, unit, phrases is not None)
    _every_file(out, manifest, partial(_verify, out=out.absolute(), key_path=key_path.absolute(), phrases=phrases))


def check_files(out: Path, manifest: ShardManifest) -> None:
    """Compare the bytes of every file with its digest. Ray must be started."""
    _every_file(out, manifest, partial(_check, out=out.absolute()))


def _every_file(out: Path, manifest: ShardManifest, piece: Piece) -> None:
    bench = Bench(out.absolute() / ".verifying")
    bench.remove()
    bench.offer(len(manifest.files))
    try:
        work_off(bench, piece, _STEP, SEAL)
    finally:
        bench.remove()


def _verify(number: int, out: Path, key_path: Path, phrases: PhraseFile | None) -> dict[str, Any]:
    key = load_key(key_path)
    verify_file(out, read_manifest(out), number, key, phrases.load(key) if phrases else None)
    return {}


def _check(number: int, out: Path) -> dict[str, Any]:
    read_manifest(out).files[number].check(out)
    return {}
