"""Rows of a benchmark that are kept as they are measured, one JSON object a line, so that a stopped one goes on."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Names = dict[str, Any]


class KeptRows:
    """The rows in a file, each of which is told from the others by its names."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self.rows: list[Names] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def row(self, names: Names, measure: Callable[[], Names]) -> Names:
        """The row of these names: found, or measured and appended."""
        for row in self.rows:
            if row.items() >= names.items():
                return row
        row = names | measure()
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row
