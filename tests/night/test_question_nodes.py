"""Questions about 21,000 passages on two nodes, of which one is lost: the same bytes as where nobody disturbs it."""

import json
import os
import signal
from contextlib import suppress

import psutil
import pytest
from node_loss import wait_for
from public_pages import write_pages
from zygote import fork

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1800)]
PAGES, AT_ONCE, UNDER_WAY = 7000, 4, 10
DRIVER = """
import ray
import rayprivacy as rp
ray.init(address={address!r}, log_to_driver=False)
keys = {{"questions.entities": "rules", "questions.write": ["squad"]}}
rp.ask_questions(public="pages.parquet", out={out!r}, document="article", overrides=keys, actors={actors})
"""


def asking(folder, address, out):
    """A driver of its own, that joins the cluster."""
    with (folder / f"{out}.log").open("w") as log:
        code = DRIVER.format(address=address, out=out, actors=AT_ONCE)
        return fork(["asking"], code, os.environ, folder, [log.fileno(), log.fileno()])


def asks(worker):
    with suppress(psutil.Error):
        return "MapWorker" in " ".join(worker.cmdline())
    return False


def test_questions_of_a_lost_node_are_asked_again_on_the_others(two_nodes, tmp_path):
    write_pages(tmp_path / "pages.parquet", PAGES)
    two_nodes.other()
    driver = asking(tmp_path, two_nodes.address, "disturbed")

    def made():
        return len([*(tmp_path / "disturbed" / ".work").glob("*.parquet")])

    try:
        wait_for(lambda: driver.poll() is not None or any(map(asks, two_nodes.workers())), "an actor on the other node")
        before = made()
        wait_for(lambda: driver.poll() is not None or made() >= before + UNDER_WAY, "blocks of both nodes")
        assert driver.poll() is None, (tmp_path / "disturbed.log").read_text()
        two_nodes.lose()
        assert driver.wait(timeout=900) == 0, (tmp_path / "disturbed.log").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert asking(tmp_path, two_nodes.address, "calm").wait(timeout=900) == 0
    for name in ("questions.parquet", "squad.json"):
        assert (tmp_path / "disturbed" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()
    counts = json.loads((tmp_path / "calm" / "stages.json").read_text())["counts"]
    assert counts["passages"] == 3 * PAGES
