"""The page of the frontier, its samples and the rows of `plan` say what the results say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import rayprivacy

ROOT = Path(rayprivacy.__file__).parent.parent


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import frontier_page

    return frontier_page


def _row(epsilon: float, seed: int, released: float, **figures: float) -> dict[str, Any]:
    return {
        "corpus": "chat", "method": "generator", "epsilon": epsilon, "lever": "shipped", "seed": seed, "cpu_s": 600,
        "figures": figures, "other_real_users": {"mauve": 0.9}, "gap_closed": None, "samples": ["one", "two\nlines"],
        "heldout_perplexity": {"base": 100.0, "released": released}, "epsilon_by_stage": {"DP-SGD": 2.5},
    }  # fmt: skip


def test_what_is_made_of_the_results_is_up_to_date(pages: Any) -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "frontier.json").read_text())["rows"]
    assert rows
    assert pages.page(pages.PAGE.read_text(), rows) == pages.PAGE.read_text()
    assert pages.samples(rows) == pages.SAMPLES.read_text()
    assert pages.quoted(list(pages.evidence(rows))) == json.loads(pages.PACKAGED.read_text())


def test_seeds_become_their_mean_and_what_was_not_measured_stays_empty(pages: Any) -> None:
    rows = [_row(3.0, 0, 60.0, mauve=0.5), _row(3.0, 1, 70.0, mauve=0.7), _row(math.inf, 0, 30.0)]
    lines = pages.table(rows).splitlines()
    assert "| chat | generator | shipped | 3 | 2 | 100.0 to 65.0 |  | 0.60 |  |" in lines[2]
    assert lines[2].endswith("| 10 |")
    assert "| chat | generator | shipped | inf | 1 | 100.0 to 30.0 |" in lines[3]
    assert lines[4].startswith("| chat | *other real users* |")
    assert "| 0.90 |" in lines[4]
    assert "```text\none\ntwo lines\n```" in pages.samples(rows)


def test_rows_of_other_sampling_count_in_perplexity_and_not_in_mauve(pages: Any) -> None:
    narrow = _row(3.0, 0, 60.0, mauve=0.5) | {"lever": "narrow sampling"}
    (row,) = [each for each in pages.evidence([narrow, _row(3.0, 1, 70.0, mauve=0.7)]) if each["corpus"] == "chat"]
    assert (row["settings"], row["runs"], row["over_base"], row["mauve"]) == ("the packaged recipe", 2, 0.65, 0.7)
    (alone,) = [each for each in pages.evidence([narrow]) if each["corpus"] == "chat"]
    assert (alone["runs"], alone["mauve"]) == (1, None)


def test_rows_without_noise_are_no_advice(pages: Any) -> None:
    found = list(pages.evidence([_row(3.0, 0, 60.0), _row(math.inf, 0, 30.0)]))
    chat = [row for row in found if row["corpus"] == "chat"]
    assert [(row["epsilon"], row["over_base"], row["minutes"]) for row in chat] == [(3.0, 0.6, 5.0)]
    assert any(row["corpus"] == "europarl" and row["method"] == "generator" for row in found)


def test_rows_on_a_gpu_count_in_everything_but_minutes_of_cores(pages: Any) -> None:
    on_gpu = {name: value for name, value in _row(3.0, 1, 80.0, mauve=0.8).items() if name != "cpu_s"}
    (row,) = [each for each in pages.evidence([_row(3.0, 0, 60.0), on_gpu]) if each["corpus"] == "chat"]
    assert (row["runs"], row["over_base"], row["mauve"], row["minutes"]) == (2, 0.7, 0.8, 5.0)
    (alone,) = [each for each in pages.evidence([on_gpu]) if each["corpus"] == "chat"]
    assert alone["minutes"] is None


def test_the_plot_is_the_same_for_the_same_rows(pages: Any, tmp_path: Path) -> None:
    rows = [_row(epsilon, 0, 60.0, mauve=0.5, recall=0.6) for epsilon in (1.0, 3.0)]
    for name in ("one", "other"):
        pages.draw(rows, tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert len((tmp_path / "one.svg").read_bytes()) < 100_000
