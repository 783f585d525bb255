"""What an earlier corpus left in a run directory: no claim and no figure may stand beside what another one made."""

import shutil
from pathlib import Path

from rayprivacy.core.files import read_json
from rayprivacy.runs.directory import CERTIFICATE

MEASURED = ("metrics.json", "audit.json", "evaluation.json", "evaluation.md", "report.html", "report-public.html")
_SAID = ("README.md", "certificate.md", CERTIFICATE)  # the one that names the corpus goes last


def forget_another_corpus(root: Path, corpus_digest: str) -> None:
    """Delete the certificate, cards and figures of another corpus: reports and audits then refuse an unfinished run.

    `corpus_digest` is of the corpus whose model or text is about to be written.
    """
    stored = root / CERTIFICATE
    if not stored.exists() or read_json(stored)["corpus_digest"] == corpus_digest:
        return
    shutil.rmtree(root / "plots", ignore_errors=True)
    for name in (*MEASURED, *_SAID):
        (root / name).unlink(missing_ok=True)
