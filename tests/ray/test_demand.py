"""What a stage asks of a cluster: machines come before it begins, and a run goes on without those that do not."""

import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray
from head_node import free_ports
from ray.util import placement_group_table
from rich.console import Console
from timeouts import patience
from toy_bench import Bench
from toy_method import LENGTHS

import rayprivacy as rp
from rayprivacy.runs import context
from rayprivacy.runs.context import await_machines
from rayprivacy.runs.recipe import StageNeeds

GROWING = """import json, sys, ray
from rayprivacy.runs import context
from rayprivacy.runs.recipe import StageNeeds
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
sentences = []
context.await_machines(StageNeeds(stage="teachers", cpus=2), sentences.append)
first = ray.cluster_resources().get("CPU", 0)
context.MINUTES = 0.05
context.await_machines(StageNeeds(stage="teachers", cpus=1000), sentences.append)
print(json.dumps([first, sentences]))"""
HEAD = "ray.head.default"
WORKER = {"resources": {"CPU": 1, "object_store_memory": 80_000_000}, "node_config": {}, "max_workers": 3}


def _needs(**counts):
    return StageNeeds(stage="teachers", **counts)


def _said(needs):
    sentences: list[str] = []
    await_machines(needs, sentences.append)
    return sentences


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(context, "MINUTES", 0.01)


def _pending():
    return {name for name, each in placement_group_table().items() if each["state"] != "REMOVED"}


def test_what_is_there_is_not_waited_for(local_ray):
    before = len(placement_group_table())
    assert _said(_needs()) == []
    assert _said(_needs(cpus=int(ray.cluster_resources()["CPU"]))) == []
    assert len(placement_group_table()) == before, "nothing was asked for"


@pytest.mark.usefixtures("impatient")
def test_a_run_goes_on_without_what_does_not_come_and_stops_asking(local_ray):
    has, before = int(ray.cluster_resources()["CPU"]), _pending()  # of other tests of this Ray
    gpus = int(ray.cluster_resources().get("GPU", 0))
    there = f"there are {has} CPUs and {gpus} GPUs: going on"
    sentences = _said(_needs(cpus=has + 1, gpus=gpus + 2))
    assert sentences == [f"asked for {has + 1} CPUs and {gpus + 2} GPUs, and after 0.01 min {there}"]
    assert _pending() <= before


@pytest.fixture
def bench(tmp_path, tiny_base):
    return Bench(tmp_path, tiny_base)


@pytest.mark.usefixtures("impatient")
def test_a_run_asks_for_each_of_its_stages(bench, local_ray):
    stages = [{"stage": "corpus", "cpus": 1}, {"stage": LENGTHS, "cpus": 1000}]

    def spoken(**resources):
        console = Console(file=io.StringIO(), width=200)
        recipe = bench.load({"resources": {"stages": stages, **resources}})
        rp.run(recipe, bench.folder / "out", resume=True, console=console)
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    joined = spoken(address="auto")
    assert joined.count("asked for") == 1
    assert f"{LENGTHS}: asked for 1000 CPUs" in joined
    assert "asked for" not in spoken(), "a machine that is alone does not grow, and resources may change"
    assert len(bench.charges()) == 4


def test_resources_of_no_stage_are_refused(bench):
    recipe = bench.load({"resources": {"stages": [{"stage": "sharding", "cpus": 1}]}})
    with pytest.raises(rp.ConfigError, match=f"names 'sharding', and the run has no such stage: corpus, {LENGTHS}, "):
        rp.plan(recipe)


@pytest.fixture
def growing():
    """The address of a head without CPUs, and Ray's own autoscaler, whose machines are processes."""
    port = free_ports(1)[0]
    address = f"{ray.util.get_node_ip_address()}:{port}"
    env = os.environ | {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        config = Path(folder) / "cluster.json"
        config.write_text(json.dumps(_cluster(address)))
        options = [f"--port={port}", f"--temp-dir={folder}", f"--autoscaling-config={config}"]
        options += ["--block", "--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats"]
        command = [Path(sys.executable).with_name("ray"), "start", "--head", *options]
        with (Path(folder) / "log").open("w") as log:
            head = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            yield address
        finally:
            head.terminate()
            head.wait(timeout=patience(60))


def _cluster(address):
    lists = "cluster_synced_files rsync_exclude rsync_filter initialization_commands setup_commands"
    lists += " head_setup_commands worker_setup_commands head_start_ray_commands worker_start_ray_commands"
    # No updaters, as on Kubernetes: nobody logs in to a machine that is a process.
    provider = {"type": "fake_multinode", "launch_multiple": True, "gcs_address": address}
    provider |= {"disable_node_updaters": True, "worker_liveness_check": False}
    kinds = {HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}, "cpu": WORKER}
    found = {"cluster_name": "growing", "max_workers": 3, "idle_timeout_minutes": 5, "upscaling_speed": 100}
    found |= {"provider": provider, "available_node_types": kinds, "head_node_type": HEAD}
    found |= {"auth": {"ssh_user": "nobody"}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False}
    return found | {name: [] for name in lists.split()}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_machines_come_when_a_stage_asks_for_them(growing):
    env, seconds = os.environ | {"RAY_AUTH_MODE": "disabled"}, patience(300)
    command = [sys.executable, "-c", GROWING, growing]
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    first, sentences = json.loads(answer.stdout.splitlines()[-1])
    assert first == 2, "the cluster had none, and grew"
    (sentence,) = sentences
    assert sentence.startswith("asked for 1000 CPUs, and after 0.05 min there are ")
