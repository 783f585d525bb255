"""The evaluation as a page of Markdown, the cells of its tables, and the two files it is kept in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayprivacy.core.files import write_atomic, write_json

JSON_FILE, PAGE_FILE = "evaluation.json", "evaluation.md"
COLUMNS = ("figure", "synthetic", "real, other users", "better")
BETTER = {"higher": "higher", "lower": "lower", "near": "near the real one"}
TITLES = {
    "fidelity": "Fidelity: is it distributed like real text?",
    "words": "Words, topics and lengths",
    "trees": "Parse trees: do words and functions occur as in real text?",
    "memorisation": "Memorisation: does it repeat real text? (beside: held-out text)",
    "downstream": "A classifier trained on it (beside: trained on real text)",
}


def tables(found: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """Title and cells of each group that has rows."""
    for group, title in TITLES.items():
        cells = [
            (row["name"], _figure(row, "synthetic"), _figure(row, "reference"), BETTER[row["better"]])
            for row in found["rows"]
            if row["group"] == group
        ]
        if cells:
            yield title, cells


def markdown(found: dict[str, Any]) -> str:
    """The whole evaluation as Markdown."""
    lines = ["# Evaluation", "", f"Not releasable: {found['why']}.", ""]
    for name, sizes in found["inputs"].items():
        lines.append(f"- {name}: {sizes['texts']:,} texts of {sizes['users']:,} users")
    compared = found["compared"]
    lines.append(
        f"- compared: {compared['synthetic']:,} synthetic and {compared['reference']:,} other real texts, each with "
        f"{compared['real_target']:,} real texts"
    )
    lines += [f"- {note}" for note in found["notes"]]
    for title, cells in tables(found):
        lines += ["", f"## {title}", "", f"| {' | '.join(COLUMNS)} |", "|---|---:|---:|---|"]
        lines += [f"| {' | '.join(row)} |" for row in cells]
    level = found["settings"]["intervals"]["level"]
    lines += ["", f"Brackets are {level:.0%} intervals over users. Figures without brackets carry none."]
    lines.append(f"Fidelity is the mean over the embeddings {', '.join(found['settings']['embeddings'])}.")
    return "\n".join(lines) + "\n"


def write_evaluation(folder: Path, found: dict[str, Any]) -> None:
    """Write `evaluation.json` and `evaluation.md`, for their owner only: the figures are internal."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JSON_FILE, found)
    write_atomic(folder / PAGE_FILE, markdown(found).encode())


def delete_evaluation(folder: Path) -> None:
    """Delete both files, if they are there."""
    for name in (JSON_FILE, PAGE_FILE):
        (folder / name).unlink(missing_ok=True)


def _figure(row: dict[str, Any], side: str) -> str:
    value, interval = row[side], row.get(f"{side}_interval")
    if value is None:
        return ""
    return f"{value:.4g}" if interval is None else f"{value:.4g} [{interval[0]:.4g}, {interval[1]:.4g}]"
