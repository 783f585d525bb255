"""A driver on a cluster that grows: `growing_driver.py ADDRESS` asks twice, and prints what it found as JSON."""

import json
import sys

import ray

from rayprivacy.runs import context
from rayprivacy.runs.recipe import StageNeeds


def _found() -> list[object]:
    sentences: list[str] = []
    context.await_machines(StageNeeds(stage="teachers", cpus=2), sentences.append)
    first = ray.cluster_resources().get("CPU", 0)
    context.MINUTES = 0.05
    context.await_machines(StageNeeds(stage="teachers", cpus=1000), sentences.append)
    return [first, sentences]


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    print(json.dumps(_found()))
