"""What each secret phrase costs by the shards it occurs in, as in table 2 of SeqPATE. Internal: it counts phrases.

The noise covers a phrase in n_s shards; one that masking left in fewer shards changes fewer teachers, and is protected
better. Only the figure at the bound is public.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rayprivacy.accounting.units import phrase_report
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.corpus.phrases import Phrases
from rayprivacy.corpus.verify_phrases import shards_per_phrase
from rayprivacy.release.vote import VoteMechanism

WHY = "counted in private text: how many phrases occur in how many shards, after masking"


def phrase_metrics(
    shards: Path, manifest: ShardManifest, phrases: Phrases, mechanism: VoteMechanism, delta: float
) -> dict[str, Any]:
    """Average and worst epsilon over the phrases, and how many phrases occur in how many shards."""
    counts = shards_per_phrase(shards, manifest, phrases)
    report = asdict(phrase_report(counts, mechanism.shards, mechanism.queries, mechanism.sigma, delta))
    figures = {name: report[name] for name in ("at_bound", "worst", "average", "histogram")}
    return {"releasable": report["releasable"], "why": WHY, "delta": delta, **figures}
