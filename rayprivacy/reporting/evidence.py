"""Writes the evidence of a finished run into its folder `evidence`; the same files of the run give the same bytes."""

import json
from pathlib import Path

from rayprivacy.core.files import SHARED, Json, write_atomic
from rayprivacy.reporting.evidence_checklist import checklist_json, checklist_markdown
from rayprivacy.reporting.evidence_facts import Evidence
from rayprivacy.reporting.evidence_forms import croissant, registry_entry
from rayprivacy.runs.directory import EVIDENCE


def write_evidence(run_dir: Path) -> Path:
    """Write the forms that apply to a run, and return their folder; a form that applies no more is deleted."""
    found = Evidence.read(run_dir)
    forms = {
        "checklist.md": checklist_markdown(found),
        "checklist.json": _dumped(checklist_json(found)),
        "registry.yaml": registry_entry(found),
        "croissant.json": _dumped(croissant(found)),
    }
    folder = run_dir / EVIDENCE
    folder.mkdir(exist_ok=True)
    for name, text in forms.items():
        if text is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomic(folder / name, text.encode(), SHARED)
    return folder


def _dumped(form: Json | None) -> str | None:
    return None if form is None else json.dumps(form, indent=2, ensure_ascii=False) + "\n"
