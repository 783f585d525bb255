"""Links that leave docs/ work on a code host; this leads them to where the site has the same text.

The README and the measurements lie outside of docs/, and the site has them as pages. Other files of the repository are
no pages: a link to one becomes its name.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {"README.md": "overview.md", "benchmarks/results/README.md": "results.md"}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose text lies outside of docs/."""
    for path, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to the page with that text, or to none."""
    here = page.file.src_uri
    source = next((path for path, name in PAGES.items() if name == here), f"docs/{here}")

    def led(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        return f"[{text}]({posixpath.relpath(found, posixpath.dirname(here) or '.')}{anchor})" if found else text

    return _LINK.sub(led, markdown)
