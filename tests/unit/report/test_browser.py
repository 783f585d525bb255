"""The pages in a real browser: nothing sticks out sideways on a desk or on a phone, no error, nothing is fetched."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from run_directory import metrics

from rayprivacy.reporting.page import write_comparison, write_report

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]
OPTIONS += ["--disable-component-update", "--no-first-run", "--enable-logging=stderr"]
FRAME = '<iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>'
PROBE = """<!doctype html>{frames}<script>onload = () => {{
  document.body.dataset.found = [...document.querySelectorAll("iframe")].map(({{contentDocument: d}}) =>
    [d.documentElement.clientWidth, d.documentElement.scrollWidth, d.querySelectorAll("section").length].join(" "));
}}</script>"""
WIDTHS = (1280, 390)
Make = Callable[..., Path]


def _looked_at(folder, *pages):
    """Sizes and sections of pages at every width, what they wrote to the console, and what they asked for."""
    log, probe = folder / "net.json", folder / "probe.html"
    frames = [FRAME.format(width=width, page=html.escape(page.read_text())) for page in pages for width in WIDTHS]
    probe.write_text(PROBE.format(frames="".join(frames)))
    own = [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", "--dump-dom", probe.as_uri()]
    done = subprocess.run([str(CHROMIUM), *OPTIONS, *own], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-found="([\d ,]+)"', done.stdout)
    assert found
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    urls = {event.get("params", {}).get("url", "") for event in json.loads(log.read_text())["events"]}
    errands = re.compile(r"https?://(?!([\w-]+\.)*(google|googleapis|gstatic|gvt1)\.com)")  # the browser's own
    return found[1].split(","), console, sorted(url for url in urls if errands.match(url))


def test_every_page_fits_without_an_error_or_a_request(make_run, tmp_path):
    runs = [
        make_run({"run_request": {"epsilon": each, "delta": 1e-6}}, name=f"run-{each}", audited=each == 8)
        for each in (1, 8)
    ]
    rows = [{"name": "copied: share of texts with 8 words of synthetic text", "value": 0.125, "interval": [0, 0.25]}]
    figures = metrics() | {"figures": {"releasable": True, "rows": rows, "left_out": ["recall is left out."]}}
    shared = write_report(make_run(name="shared", figures=figures), internal=False)
    pages = [*map(write_report, runs), write_comparison(runs, tmp_path / "comparison.html"), shared]
    sizes = [f"{width} {width} {sections}" for sections in (7, 9, 2, 7) for width in WIDTHS]
    assert _looked_at(tmp_path, *pages) == (sizes, [], [])


def test_an_error_and_a_request_are_seen(make_run, tmp_path):
    page = write_report(make_run())
    script = '<script>console.error("x")</script><img src="http://127.0.0.1:9/pixel.png">'
    page.write_text(page.read_text().replace("default-src 'none'", "default-src * 'unsafe-inline'") + script)
    _, errors, requests = _looked_at(tmp_path, page)
    assert errors
    assert requests == ["http://127.0.0.1:9/pixel.png"]
