"""The Grafana dashboard asks for metrics that the package exports, and by no other tag than theirs."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from rayprivacy.ledger import gauges
from rayprivacy.methods import progress

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "rayprivacy.json").read_text())
TAGS = {"account", "release", "what"}
METRIC = re.compile(r"\bray_[a-z_]+")


def exported() -> set[str]:
    accounts = {f"ray_rayprivacy_account_{name}" for name in gauges.GAUGES}
    return accounts | {f"ray_rayprivacy_{name}" for name in progress._GAUGES}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_every_query_names_a_metric_of_ours() -> None:
    asked = [METRIC.findall(expression) for expression in expressions()]
    assert all(len(names) == 1 for names in asked)
    assert {names[0] for names in asked} <= exported()
    variables = [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert variables
    assert {name for query in variables for name in METRIC.findall(query)} <= exported()


def test_no_other_tag_is_used() -> None:
    for expression in expressions():
        (by,) = re.findall(r"^max by \((\w+)\)", expression)
        tags = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", expression))
        assert tags | {by} <= TAGS, expression


def test_what_is_counted_is_counted_by_the_package() -> None:
    counted = {what for expression in expressions() for what in re.findall(r'what="(\w+)"', expression)}
    assert counted <= {*progress.COUNTS, *progress.RATES}
    assert {"parts_sharded", "teachers_trained", "queries_voted", "steps_done", "tokens_per_second"} <= counted


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_prometheus_keeps_our_metrics() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())["scrape_configs"]
    (keep,) = job["metric_relabel_configs"]
    assert all(re.fullmatch(keep["regex"], name) for name in exported())
    assert not re.fullmatch(keep["regex"], "ray_tasks")
