"""A local run has a Ray of its own, into which nobody else can look: no dashboard, no metrics, a private folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rayprivacy

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

# Something has run, and a gauge was set, before anybody looks: by then all listens that will.
# One process for two folders: what it imports takes longer than its two runs.
LOOKS = """
import json, os, psutil, ray, ray.data, sys
from ray.util.metrics import Gauge
from rayprivacy.blocks.steps import that_finds_room
from rayprivacy.dpsgd.settings import EngineConfig
from rayprivacy.runs.session import ray_session

def listening():
    for process in psutil.Process().children(recursive=True):
        ports = [each.laddr.port for each in process.net_connections("inet") if each.status == "LISTEN"]
        yield process.name(), process.cmdline(), ports

for place in sys.argv[1:]:
    os.environ["TMPDIR"] = place
    with ray_session("local"):
        Gauge("rayprivacy_progress", "").set(1.0)
        asked = [(10**6, "local"), (1, "local"), (10**6, "auto")]
        room = [that_finds_room(EngineConfig(workers=workers), address).workers for workers, address in asked]
        rows = ray.data.range(300).map_batches(lambda batch: batch).count()
        folder = ray._private.worker._global_node.get_session_dir_path()
        around = os.path.dirname(os.path.dirname(folder))
        seen = {"listening": list(listening()), "port": ray.nodes()[0]["MetricsExportPort"], "rows": rows}
        seen |= {"room": room, "cpus": int(ray.cluster_resources()["CPU"])}
        seen |= {"mode": os.stat(around).st_mode & 0o777, "mine": os.stat(around).st_uid == os.getuid()}
    import ray.dashboard.optional_deps  # as before
    token = os.stat(os.path.expanduser("~/.ray/auth_token")).st_mode & 0o777
    print(json.dumps(seen | {"left": os.path.exists(around), "token": token}))
"""
NAMES = {"short": "short", "long": "long" * 30}
TALK = {"gcs_server", "raylet", "ray::RuntimeEnvAgent"}  # by whose ports, and those of workers, Ray's processes talk


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What a process sees in two local runs."""
    folder = tmp_path_factory.mktemp("local")
    places = [folder / name for name in NAMES.values()]
    for place in places:
        place.mkdir()
    own = {"HOME": str(folder), "RAY_metrics_report_interval_ms": "1000"}
    own["PYTHONPATH"] = str(Path(rayprivacy.__file__).parents[1])  # which is a copy where a seeded bug is tried
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")} | own
    command = [sys.executable, "-c", LOOKS, *map(str, places)]
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=350)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(NAMES, map(json.loads, done.stdout.splitlines()[-2:]), strict=True))


@pytest.fixture(params=NAMES)
def seen(runs, request):
    """What was seen in one of them, whose temporary folder may have too long a name for sockets."""
    return runs[request.param]


def test_nothing_listens_but_what_rays_processes_talk_by(seen):
    assert seen["port"] == -1
    assert seen["rows"] == 300
    names = {name for name, _, ports in seen["listening"] if ports}
    assert {name for name in names if name.endswith("Agent") or not name.startswith("ray::")} == TALK, seen["listening"]


def test_folder_and_token_are_the_owners_and_the_folder_goes_with_the_run(seen):
    assert (seen["mode"], seen["mine"], seen["left"]) == (0o700, True, False)
    assert seen["token"] == 0o600


def test_there_are_no_more_workers_than_cpus_on_a_machine_alone(seen):
    assert seen["room"] == [seen["cpus"], 1, 10**6]
