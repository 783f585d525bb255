"""The manifests for KubeRay: its own fields against our closed schema, pods against the schemas of Kubernetes."""

import json
import operator
import re
import shlex
from functools import reduce
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from rayprivacy.methods.registry import METHODS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kuberay"
PROMETHEUS = ROOT / "deploy" / "prometheus.yaml"
SCHEMA = json.loads((Path(__file__).parent / "kuberay_schema.json").read_text())
KUBERNETES = "1.37"
HEAD = "rayClusterSpec headGroupSpec rayStartParam"
NAMES = ["cluster.yaml", "job.yaml"]


def load(name):
    return dict(yaml.safe_load((FOLDER / name).read_text()))


def cluster_of(manifest):
    return dict(manifest["spec"].get("rayClusterSpec", manifest["spec"]))


def pods_of(manifest):
    cluster = cluster_of(manifest)
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": group["template"]["spec"]}


def check_own(manifest):
    # Each kind alone, so that an error names the field and not the choice of kinds.
    Draft202012Validator({**SCHEMA, "oneOf": [{"$ref": f"#/$defs/{manifest['kind']}"}]}).validate(manifest)


def check(manifest):
    check_own(manifest)
    for pod in pods_of(manifest):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_every_manifest_is_valid_and_the_volume_is_shared():
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*NAMES, "monitor.yaml", "network.yaml", "storage.yaml"}
    Draft202012Validator.check_schema(SCHEMA)
    for name in NAMES:
        check(load(name))
    volume = load("storage.yaml")
    kubernetes_validate.validate(volume, KUBERNETES, strict=True)
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


def listening():
    """The ports that containers name, by their names; those of heads and workers agree."""
    pods = [pod for name in NAMES for pod in pods_of(load(name))]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    return {port["name"]: port["containerPort"] for container in containers for port in container["ports"]}


def test_dashboard_and_metrics_are_for_the_namespace_and_for_labelled_ones():
    policy, ports = load("network.yaml"), listening()
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    spec, of_ray = policy["spec"], {"matchExpressions": [{"key": "ray.io/node-type", "operator": "Exists"}]}
    assert (spec["policyTypes"], spec["podSelector"]) == (["Ingress"], of_ray)
    opened = {json.dumps(rule["from"]): {each["port"] for each in rule.get("ports", [])} for rule in spec["ingress"]}
    assert opened == {
        json.dumps([{"podSelector": of_ray}]): set(),  # all: Ray draws ports
        json.dumps([{"podSelector": {}}]): {ports[name] for name in ("dashboard", "client", "metrics")},
        json.dumps([{"namespaceSelector": {"matchLabels": {"rayprivacy/metrics": "read"}}}]): {ports["metrics"]},
        json.dumps([{"namespaceSelector": {"matchLabels": {"rayprivacy/operator": "yes"}}}]): {ports["dashboard"]},
    }


def test_prometheus_stores_the_same_of_pods_as_of_machines():
    monitor = load("monitor.yaml")
    check_own(monitor)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (keep,), (job,) = endpoint["metricRelabelings"], yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    assert endpoint["port"] in listening()
    assert [{"source_labels": keep["sourceLabels"], **{key: keep[key] for key in ("regex", "action")}}] == (
        job["metric_relabel_configs"]
    )
    assert monitor["spec"]["selector"] == load("network.yaml")["spec"]["podSelector"]
    monitor["spec"]["podMetricsEndpoint"] = []
    with pytest.raises(ValidationError):
        check_own(monitor)


@pytest.mark.parametrize("path", ["backoffLimits", "rayClusterSpec authOption", "rayClusterSpec rayStartParams", HEAD])
def test_a_typo_in_a_field_of_kuberay_is_rejected(path):
    manifest = load("job.yaml")
    *blocks, typo = path.split()
    reduce(operator.getitem, blocks, manifest["spec"])[typo] = {}
    with pytest.raises(ValidationError):
        check(manifest)


def test_a_typo_in_a_pod_is_rejected():
    wrong = load("job.yaml")
    cluster_of(wrong)["headGroupSpec"]["template"]["spec"]["initContainer"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_is_asked_for_secrets_are_files_and_no_pod_is_root(name):
    assert cluster_of(load(name))["authOptions"] == {"mode": "token"}
    for pod in pods_of(load(name)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in [*spec["initContainers"], *spec["containers"]]:
            assert {entry["name"] for entry in container.get("env", [])} <= {"RAY_USAGE_STATS_ENABLED"}
            assert "envFrom" not in container
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        (main,) = spec["containers"]
        assert "readinessProbe" in main
        assert "secret" not in {mount["name"] for mount in main["volumeMounts"]}, "its files have the wrong mode"
        assert {"keys", "storage"} <= {mount["name"] for mount in main["volumeMounts"]}


@pytest.mark.parametrize("name", NAMES)
def test_pods_have_the_folders_that_recipes_name(name):
    for path in (ROOT / "deploy" / "recipes").glob("*.yaml"):
        named = set(re.findall(r"/mnt/rayprivacy/\w+", path.read_text()))
        assert named
        for pod in pods_of(load(name)):
            (main,) = pod["spec"]["containers"]
            assert named <= {mount["mountPath"] for mount in main["volumeMounts"]}


def test_a_retry_is_the_same_release():
    manifest = load("job.yaml")
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "rayprivacy.cli", "run"]
    assert {"--resume", "resources.address=auto"} <= set(words)
    head = cluster_of(manifest)["headGroupSpec"]["template"]["spec"]["containers"][0]
    mounts = {mount["mountPath"]: mount["name"] for mount in head["volumeMounts"]}
    assert (mounts["/etc/rayprivacy"], mounts["/mnt/rayprivacy/runs"]) == ("recipe", "storage")
    assert words[words.index("--out") + 1].startswith("/mnt/rayprivacy/runs/")


def test_the_job_takes_any_recipe():
    text = (FOLDER / "job.yaml").read_text()
    assert [method for method in METHODS if method in text] == []
    assert text.count("rayprivacy-recipe}") == 1, "the one place that says what runs"
    changed = yaml.safe_load(text.replace("rayprivacy-run", "letters").replace("rayprivacy-recipe", "letters-recipe"))
    check(changed)
    assert changed["metadata"]["name"] == "letters"
    assert "--out /mnt/rayprivacy/runs/letters " in changed["spec"]["entrypoint"]


def test_gpus_are_asked_for_only_where_wanted():
    groups = {group["groupName"]: group for group in cluster_of(load("job.yaml"))["workerGroupSpecs"]}
    assert groups.keys() == {"cpu", "gpu"}
    assert groups["gpu"]["replicas"] == groups["gpu"]["minReplicas"] == 0
    assert groups["gpu"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in str(groups["cpu"])
