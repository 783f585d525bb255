"""The Grafana dashboard asks for metrics that the package exports, by their tags, and names no method's counts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayprivacy.ledger import service
from rayprivacy.runs import progress
from rayprivacy.runs.plan import MODELS_MEASURED, PARTS_SHARDED, STEPS_DONE, TEXTS_WRITTEN

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "rayprivacy.json").read_text())
TAGS = {"account", "release", "what"}
COUNTED = {*progress.RATES, PARTS_SHARDED, STEPS_DONE, "teachers_trained", "queries_voted"}
COUNTED |= {TEXTS_WRITTEN, MODELS_MEASURED, "sentences_written", "parts_encoded", "student_steps_done"}
METRIC = re.compile(r"\bray_[a-z_]+")


def exported() -> set[str]:
    accounts = {f"ray_rayprivacy_account_{name}" for name in service.GAUGES}
    return accounts | {f"ray_rayprivacy_{name}" for name in progress._GAUGES}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_every_query_names_a_metric_of_ours_by_its_tags() -> None:
    asked = [METRIC.findall(expression) for expression in expressions()]
    assert all(len(names) == 1 for names in asked)
    assert {names[0] for names in asked} <= exported()
    queries = [variable["query"] for variable in variables().values() if variable["type"] == "query"]
    assert queries
    assert {name for query in queries for name in METRIC.findall(query)} <= exported()
    for expression in expressions():
        (by,) = re.findall(r"^max by \((\w+)\)", expression)
        tags = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", expression))
        assert tags | {by} <= TAGS, expression


def variables() -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def test_no_query_names_what_is_counted() -> None:
    """A new method shows up without an edit: whatever is exported is a value of a variable."""
    selected = {found for each in expressions() for found in re.findall(r'\bwhat\s*[=!~]+\s*"([^"]*)"', each)}
    assert selected == {"$what", "$pace"}
    text = json.dumps(DASHBOARD)
    assert [name for name in COUNTED if name in text] == []


@pytest.mark.parametrize(
    ("variable", "gauges"),
    [("what", {"ray_rayprivacy_progress", "ray_rayprivacy_progress_total"}), ("pace", {"ray_rayprivacy_rate"})],
)
def test_each_exported_count_has_a_panel(variable: str, gauges: set[str]) -> None:
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel.get("repeat") == variable]
    asked = {name for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert asked == gauges
    assert f"${variable}" in panel["title"]
    query = variables()[variable]["query"]
    assert query.startswith("label_values(")
    assert query.endswith(", what)"), "its values are read from the gauges"
    assert set(METRIC.findall(query)) <= gauges
    assert variables()[variable]["current"]["value"] == "$__all"
    assert variables()[variable]["multi"], "a panel repeats over the chosen values"


def test_prometheus_keeps_our_metrics() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())["scrape_configs"]
    (keep,) = job["metric_relabel_configs"]
    assert all(re.fullmatch(keep["regex"], name) for name in exported())
    assert not re.fullmatch(keep["regex"], "ray_tasks")
