"""The pages in a real browser: nothing sticks out sideways on a desk or on a phone, no error, nothing is fetched."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from run_directory import AUDIT, EVALUATION

from rayprivacy.reporting.page import write_comparison, write_report

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]
FRAME = '<iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>'
PROBE = """<!doctype html>{frames}<script>onload = () => {{
  document.body.dataset.found = [...document.querySelectorAll("iframe")].map(({{contentDocument: d}}) =>
    [d.documentElement.clientWidth, d.documentElement.scrollWidth, d.querySelectorAll("section").length].join(" "));
}}</script>"""
WIDTHS = (1280, 390)
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run")
SECTIONS = {"report": "7", "audited": "9", "comparison": "2"}


class Browser:
    """Headless Chromium with a profile of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *QUIET]
        command += [f"--user-data-dir={self.folder / 'profile'}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.fixture(params=list(SECTIONS))
def page(request: pytest.FixtureRequest, make_run: Callable[..., Path], tmp_path: Path) -> Path:
    if request.param == "report":
        return write_report(make_run())
    if request.param == "audited":
        (tmp_path / "audit.json").write_text(json.dumps(AUDIT))
        (tmp_path / "evaluation.json").write_text(json.dumps(EVALUATION))
        return write_report(make_run()).rename(tmp_path / "audited.html")
    runs = [make_run({"run_request": {"epsilon": epsilon, "delta": 1e-6}}, name=f"run-{epsilon}") for epsilon in (1, 8)]
    return write_comparison(runs, tmp_path / "comparison.html")


def test_no_horizontal_overflow(browser: Browser, page: Path, tmp_path: Path) -> None:
    probe = tmp_path / "probe.html"
    frames = [FRAME.format(width=width, page=html.escape(page.read_text())) for width in WIDTHS]
    probe.write_text(PROBE.format(frames="".join(frames)))
    found = re.search(r'data-found="([\d ,]+)"', browser("--dump-dom", probe.as_uri()).stdout)
    assert found
    assert found[1].split(",") == [f"{width} {width} {SECTIONS[page.stem]}" for width in WIDTHS]
    shot = tmp_path / "shot.png"
    browser(f"--window-size={WIDTHS[-1]},1600", f"--screenshot={shot}", page.as_uri())
    assert shot.stat().st_size > 20_000


def test_no_error_and_no_request(browser: Browser, page: Path, tmp_path: Path) -> None:
    assert _looked_at(browser, page, tmp_path) == ([], [])


@pytest.mark.parametrize("page", ["comparison"], indirect=True)
def test_an_error_and_a_request_are_seen(browser: Browser, page: Path, tmp_path: Path) -> None:
    script = '<script>console.error("x")</script><img src="http://127.0.0.1:9/pixel.png">'
    page.write_text(page.read_text().replace("default-src 'none'", "default-src * 'unsafe-inline'") + script)
    errors, requests = _looked_at(browser, page, tmp_path)
    assert errors
    assert requests == ["http://127.0.0.1:9/pixel.png"]


def _looked_at(browser: Browser, page: Path, tmp_path: Path) -> tuple[list[str], list[str]]:
    """What a page wrote to the console, and which addresses it asked for."""
    log = tmp_path / "net.json"
    done = browser("--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom", page.as_uri())
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    urls = {event.get("params", {}).get("url", "") for event in json.loads(log.read_text())["events"]}
    own = re.compile(r"https?://(?!([\w-]+\.)*(google|googleapis|gstatic|gvt1)\.com)")  # the browser's own errands
    return console, sorted(url for url in urls if own.match(url))
