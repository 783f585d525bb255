"""A generator on 64 part files and eight workers, whose node is lost in every stage: the model of one worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from node_loss import GENERATOR, Job, Nodes

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

PARTS, WORKERS = 64, 8
SEVERAL_BLOCKS = {"texts": 192, "max_tokens": 6}  # so that there are two actors


@pytest.fixture(scope="module")
def nodes(zygotes: None) -> Iterator[Nodes]:
    found = Nodes(cpus=WORKERS // 2, largest_message=100_000)  # as Ray has it: an actor is restarted with what it had
    found.other()
    yield found
    found.shutdown()


@pytest.fixture
def job(nodes: Nodes, tiny_base: Path, tmp_path: Path) -> Job:
    blocks = GENERATOR | {"generation": SEVERAL_BLOCKS, "resources": {"workers": WORKERS, "cpus": 1, "actors": 2}}
    return Job.make(tmp_path, tiny_base, nodes.address, blocks)


def test_a_node_lost_in_each_stage_changes_nothing_and_costs_nothing(job: Job, nodes: Nodes) -> None:
    one = job.start("one", "-o", "resources.workers=1", PART_FILES=str(PARTS))
    assert one.finish() == 0, one.stderr.read_text()
    many = job.start("many", orders=dict.fromkeys(("sharding", "steps", "writing"), ""), PART_FILES=str(PARTS))
    try:
        for point in ("sharding", "steps", "writing"):
            many.caught(point, nodes.other())
            many.lose(point, nodes)
            nodes.other()
        assert many.finish() == 0, many.stderr.read_text()
    finally:
        many.kill()
    assert many.visits("sharding") > PARTS
    assert many.visits("steps") >= 2 * WORKERS, "every rank does the step anew"
    for pattern in ("private/shards/*", "model/model.safetensors"):
        assert job.contents("many", pattern) == job.contents("one", pattern)
    assert job.certificate("many") == job.certificate("one")
    assert job.book("many")[0] == job.book("one")[0] == ["create", *["reserve", "start", "commit"] * 3]
