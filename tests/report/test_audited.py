"""Audit and evaluation on the internal page: drawn to scale against the certificate, and never on a page to share."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from run_directory import AUDIT, EVALUATION, Page

from rayprivacy.core.errors import ConfigError
from rayprivacy.reporting.page import write_report


@pytest.fixture
def run(make_run: Callable[..., Path]) -> Path:
    root = make_run()
    (root / "audit.json").write_text(json.dumps(AUDIT))
    (root / "evaluation.json").write_text(json.dumps(EVALUATION))
    return root


def test_the_internal_page_shows_both(run: Path) -> None:
    page = Page(write_report(run))
    assert {"audit", "evaluation"} <= set(page.ids())
    assert len(page.ids()) == len(set(page.ids()))
    for said in ("Not flagged: no attack did better.", "AUC 0.51 (0.47 to 0.55)", "fidelity: mauve", "0.625", "0.94"):
        assert said in page.text
    assert "0.475 to 0.525" in page.text
    assert "intervals are rough" in page.text


def test_dots_are_where_the_figures_are(run: Path) -> None:
    source = write_report(run).read_text()
    roc, exposure = (re.search(rf'<svg class="{kind}".*?</svg>', source, re.S)[0] for kind in ("roc", "exposure"))
    assert re.findall(r'<circle class="dot loss" cx="[\d.]+" cy="([\d.]+)"', roc) == ["206.0", "202.4", "183.5"]
    admitted = re.search(r'<polyline class="best" points="([^"]+)"', roc)[1].split()
    assert [float(point.split(",")[1]) for point in admitted] == [202.4, 170.0, 26.0]
    assert re.findall(r'<circle class="dot" cx="[\d.]+" cy="([\d.]+)"', exposure) == ["188.0"]
    assert re.findall(r'<circle class="dot leaked" cx="[\d.]+" cy="([\d.]+)"', exposure) == ["26.0"]


def test_a_page_to_share_has_neither(run: Path) -> None:
    page = Page(write_report(run, internal=False))
    assert not {"audit", "evaluation"} & set(page.ids())
    for said in ("Not flagged", "AUC", "mauve", "exposure"):
        assert said not in page.text


def test_a_flagged_run_is_an_alarm(run: Path) -> None:
    flagged = AUDIT | {"verdict": {"flagged": True, "sentence": "FLAGGED by membership."}}
    (run / "audit.json").write_text(json.dumps(flagged))
    page = Page(write_report(run))
    assert ("div", {"class": "verdict warning"}) in page.tags
    assert "FLAGGED by membership." in page.text


def test_a_file_of_another_kind_is_one_sentence(run: Path) -> None:
    (run / "audit.json").write_text(json.dumps({"membership": {}}))
    with pytest.raises(ConfigError, match=r"audit\.json has no key 'canaries'"):
        write_report(run)
