"""Write the certificate of a finished run, for machines and for people."""

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rayprivacy.core.files import SHARED, read_json, write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.ledger.certificate import build_certificate
from rayprivacy.ledger.certificate_text import to_markdown
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.run import R, Run
from rayprivacy.models.backbone import Backbone

MEASURED = ("metrics.json", "audit.json", "evaluation.json", "evaluation.md", "report.html", "report-public.html")
PACKAGES = ("rayprivacy", "ray", "torch", "transformers", "opendp")


def write_certificate(
    run: Run[R],
    ledger: Ledger,
    key: Key,
    shards: ShardManifest,
    backbone: Backbone,
    *,
    assumptions: Sequence[str],
    stages: Sequence[Mapping[str, Any]],
    as_published: Mapping[str, Any] | None = None,
    recalled: bool = False,
) -> dict[str, Any]:
    """Write `certificate.json` and `certificate.md`; the certificate as JSON values.

    Args:
        run: the run, whose release is committed.
        ledger: the book.
        key: the run's secret.
        shards: the corpus.
        backbone: the base model.
        assumptions: what the guarantee rests on, in sentences.
        stages: the stages that were charged, as JSON objects.
        as_published: the method's own figure where the paper's analysis differs from ours.
        recalled: whether the claim of the version that made it was found not to hold.
    """
    recipe = run.recipe
    certificate = build_certificate(
        ledger,
        recipe.privacy.account,
        recipe.release_id,
        corpus_digest=shards.corpus_digest(key),
        run_request=recipe.privacy.budget,
        assumptions=assumptions,
        test_key=key.is_test_key,
        versions={name: version(name) for name in PACKAGES}
        | {"base model": f"{recipe.model.base} {backbone.digest[:16]}"},
        stages=stages,
        as_published=as_published,
        audit=recipe.audit.canaries.model_dump(mode="json") if recipe.audit else None,
        recalled=recalled,
    )
    _forget_another_corpus(run.root, certificate)
    write_atomic(run.root / "certificate.json", (json.dumps(certificate, indent=2) + "\n").encode(), SHARED)
    write_atomic(run.root / "certificate.md", to_markdown(certificate).encode(), SHARED)
    return certificate


def _forget_another_corpus(root: Path, certificate: Mapping[str, Any]) -> None:
    """Delete what was measured on the corpus of an earlier certificate; what is measured now will be written anew."""
    stored = root / "certificate.json"
    if not stored.exists() or read_json(stored)["corpus_digest"] == certificate["corpus_digest"]:
        return
    for name in MEASURED:
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "plots", ignore_errors=True)
