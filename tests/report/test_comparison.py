"""Several runs on one page: claims side by side, no private figure on a page to share, a frontier of those unbeaten."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_directory
from run_directory import Page
from typer.testing import CliRunner

from rayprivacy.cli import app
from rayprivacy.core.errors import ConfigError
from rayprivacy.reporting.page import write_comparison


@pytest.fixture
def three(make_run: Callable[..., Path]) -> list[Path]:
    """Three runs of growing epsilon; the second is beaten by the first."""
    runs = []
    for name, epsilon, student in (("one", 1.0, 40.0), ("three", 3.0, 41.5), ("eight", 8.0, 30.25)):
        figures = run_directory.metrics()
        figures["heldout"]["perplexity"]["student"] = student
        runs.append(make_run({"run_request": {"epsilon": epsilon, "delta": 1e-6}}, figures, name))
    return runs


def test_the_page_shows_every_run(three: list[Path], tmp_path: Path) -> None:
    page = Page(write_comparison(three, tmp_path / "page.html"))
    for word in ("one", "three", "eight", "40.00", "41.50", "30.25", "61.32"):
        assert word in page.text
    assert len(page.ids()) == len(set(page.ids()))
    assert page.open == []
    dots = [attrs["class"] for tag, attrs in page.tags if tag == "circle"]
    assert dots == ["dot best", "dot", "dot best"]
    sources = [name for _, attrs in page.tags for name in attrs if name in ("src", "href")]
    assert sources == []


def test_a_page_to_share_has_no_figure_of_private_text(three: list[Path], tmp_path: Path) -> None:
    page = Page(write_comparison(three, tmp_path / "page.html", internal=False))
    for word in ("40.00", "41.50", "30.25", "61.32", "perplexity", "Perplexity", "internal"):
        assert word not in page.text
    assert not any(tag == "circle" for tag, _ in page.tags)
    assert "three" in page.text


@pytest.mark.parametrize("other", [{"kind": "selective"}, {"unit": "record", "epsilon": 70.0}])
def test_claims_of_different_kinds_have_no_frontier_in_common(
    three: list[Path], make_run: Callable[..., Path], tmp_path: Path, other: dict[str, Any]
) -> None:
    """The epsilon of a selective run is not one for users."""
    assert any(tag == "circle" for tag, _ in Page(write_comparison(three, tmp_path / "page.html")).tags)
    more = make_run({"corpus_digest": "0" * 64} | other, name="other")
    page = Page(write_comparison([*three, more], tmp_path / "page.html"))
    assert "claims of different kinds, or protect different units" in page.text
    assert "trained on different private text" in page.text
    assert page.text.count("warning: do not rely on it") == ("epsilon" in other)
    assert not any(tag == "circle" for tag, _ in page.tags)


def test_bad_input_is_one_sentence(three: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two run directories or more"):
        write_comparison(three[:1], tmp_path / "page.html")
    (three[1] / "certificate.json").unlink()
    with pytest.raises(ConfigError, match=r"three/certificate\.json does not exist"):
        write_comparison(three, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_command(three: list[Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", *map(str, three), "--out", str(tmp_path / "page.html")])
    assert (done.exit_code, done.output.strip()) == (0, str(tmp_path / "page.html"))
    done = CliRunner().invoke(app, ["report", str(three[0]), "s3://bucket/run"])
    assert isinstance(done.exception, ConfigError)
    assert "s3://bucket/run is a URI" in str(done.exception)
