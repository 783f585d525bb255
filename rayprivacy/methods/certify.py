"""Write the certificate of a finished run, for machines and for people."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.ledger.certificate import build_certificate
from rayprivacy.ledger.certificate_text import to_markdown
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.run import R, Run
from rayprivacy.models.backbone import Backbone

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
    )
    write_atomic(run.root / "certificate.json", (json.dumps(certificate, indent=2) + "\n").encode())
    write_atomic(run.root / "certificate.md", to_markdown(certificate).encode())
    return certificate
