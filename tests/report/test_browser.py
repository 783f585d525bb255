"""The page in a real browser: nothing sticks out sideways on a desk or on a phone."""

import html
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rayprivacy.report.page import write_report

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
PROBE = """<!doctype html><iframe id="f" width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>
<script>onload = () => {{
  const d = document.getElementById("f").contentDocument, root = d.documentElement;
  document.body.dataset.found = [root.clientWidth, root.scrollWidth, d.querySelectorAll("section").length].join(" ");
}}</script>"""


def chromium(*arguments: str) -> str:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_horizontal_overflow(make_run: Callable[..., Path], tmp_path: Path, width: int) -> None:
    report = write_report(make_run())
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(report.read_text())))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    dom = chromium(profile, "--dump-dom", probe.as_uri())
    found = re.search(r'data-found="(\d+) (\d+) (\d+)"', dom)
    assert found
    assert found.groups() == (str(width), str(width), "7")
    shot = tmp_path / "shot.png"
    chromium(profile, f"--window-size={width},1600", f"--screenshot={shot}", report.as_uri())
    assert shot.stat().st_size > 20_000
