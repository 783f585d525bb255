"""Several runs on one page: claims side by side, no private figure on a page to share, a frontier of those unbeaten."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_directory
from commands import command
from run_directory import Page

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


def _circles(page: Page) -> list[str | None]:
    return [attrs["class"] for tag, attrs in page.tags if tag == "circle"]


def test_the_page_shows_every_run_and_one_to_share_no_private_figure(three: list[Path], tmp_path: Path) -> None:
    page = Page(write_comparison(three, tmp_path / "page.html"))
    shared = Page(write_comparison(three, tmp_path / "shared.html", internal=False))
    for word in ("40.00", "41.50", "30.25", "61.32", "erplexity", "internal"):
        assert word in page.text
        assert word not in shared.text
    for word in ("one", "three", "eight"):
        assert word in page.text
        assert word in shared.text
    assert len(page.ids()) == len(set(page.ids()))
    assert (page.open, _circles(page), _circles(shared)) == ([], ["dot best", "dot", "dot best"], [])
    assert not [name for _, attrs in page.tags for name in attrs if name in ("src", "href")]


@pytest.mark.parametrize("other", [{"kind": "selective"}, {"unit": "record", "epsilon": 70.0}])
def test_claims_of_different_kinds_have_no_frontier_in_common(
    three: list[Path], make_run: Callable[..., Path], tmp_path: Path, other: dict[str, Any]
) -> None:
    """The epsilon of a selective run is not one for users."""
    more = make_run({"corpus_digest": "0" * 64} | other, name="other")
    page = Page(write_comparison([*three, more], tmp_path / "page.html"))
    assert "claims of different kinds, or protect different units" in page.text
    assert "trained on different private text" in page.text
    assert page.text.count("warning: do not rely on it") == ("epsilon" in other)
    assert _circles(page) == []


def test_the_command_and_its_refusals(three: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(ConfigError, match="two run directories or more"):
        write_comparison(three[:1], path)
    done = command(["report", *map(str, three), "--out", str(path)], tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, str(path))
    path.unlink()
    assert "s3://bucket/run is a URI" in command(["report", str(three[0]), "s3://bucket/run"], tmp_path).stderr
    (three[1] / "certificate.json").unlink()
    with pytest.raises(ConfigError, match=r"three/certificate\.json does not exist"):
        write_comparison(three, path)
    assert not path.exists()
