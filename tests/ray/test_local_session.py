"""A local run has a Ray of its own, into which nobody else can look: no dashboard, no metrics, a private folder."""

import json
import os

import pytest
from zygote import fork

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

# Something has run, and a gauge was set, before anybody looks: by then all listens that will.
LOOKS = """
import json, os, psutil, ray, ray.data
from ray.util.metrics import Gauge
from rayprivacy.runs.session import ray_session

def listening():
    for process in psutil.Process().children(recursive=True):
        ports = [each.laddr.port for each in process.net_connections("inet") if each.status == "LISTEN"]
        yield process.name(), process.cmdline(), ports

with ray_session("local"):
    Gauge("rayprivacy_progress", "").set(1.0)
    rows = ray.data.range(300).map_batches(lambda batch: batch).count()
    folder = ray._private.worker._global_node.get_session_dir_path()
    around = os.path.dirname(os.path.dirname(folder))
    seen = {"listening": list(listening()), "port": ray.nodes()[0]["MetricsExportPort"], "rows": rows}
    seen |= {"mode": os.stat(around).st_mode & 0o777, "mine": os.stat(around).st_uid == os.getuid()}
import ray.dashboard.optional_deps  # as before
token = os.stat(os.path.expanduser("~/.ray/auth_token")).st_mode & 0o777
print(json.dumps(seen | {"left": os.path.exists(around), "token": token}))
"""
TALK = {"gcs_server", "raylet", "ray::RuntimeEnvAgent"}  # by whose ports Ray's processes talk; workers are `ray::IDLE`


@pytest.fixture(scope="module", params=["short", "long" * 30], ids=["short", "long"])
def seen(tmp_path_factory, request, zygotes):
    """What a process sees in its local run, whose temporary folder may have too long a name for sockets."""
    folder = tmp_path_factory.mktemp("local") / request.param
    folder.mkdir()
    own = {"TMPDIR": str(folder), "HOME": str(folder), "RAY_metrics_report_interval_ms": "1000"}
    with (folder / "said").open("w+") as said:
        code = fork(["-c"], LOOKS, os.environ | own, folder, [said.fileno()] * 2).wait(timeout=350)
        said.seek(0)
        told = said.read()
    assert code == 0, told[-3000:]
    return json.loads(told.splitlines()[-1])


def test_nothing_listens_but_what_rays_processes_talk_by(seen):
    assert seen["port"] == -1
    assert seen["rows"] == 300
    names = {name for name, _, ports in seen["listening"] if ports and name != "ray::IDLE"}
    assert names <= TALK, seen["listening"]
    assert names >= {"gcs_server", "raylet"}, "nobody looked"


def test_folder_and_token_are_the_owners_and_the_folder_goes_with_the_run(seen):
    assert (seen["mode"], seen["mine"], seen["left"]) == (0o700, True, False)
    assert seen["token"] == 0o600
