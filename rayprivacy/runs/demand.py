"""What a stage asks of a cluster that grows and shrinks: its machines come before its work begins.

A stage counts the CPUs of the cluster when it begins, so machines that come later would stay idle. What it asks for is
asked of Ray's autoscaler by a placement group, which is given back as soon as it is there. A group goes with its
driver, so a run that is killed keeps no machine; machines without work go after the cluster's own idle time.
"""

from collections.abc import Callable, Mapping

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from rayprivacy.runs.recipe import StageNeeds

MINUTES = 15.0  # that a stage waits at most: autoscalers take a few to start a machine


def await_machines(needs: StageNeeds, report: Callable[[str], None]) -> None:
    """Wait MINUTES at most until the cluster has what a stage asks for, and report what is missing then.

    The work is the same with fewer machines.
    """
    wanted = {kind: count for kind, count in (("CPU", needs.cpus), ("GPU", needs.gpus)) if count}
    bundles = [{kind: 1} for kind, count in wanted.items() for _ in range(_asked(kind, count))]
    if not bundles:
        return
    group = placement_group(bundles)
    try:
        came = group.wait(MINUTES * 60)
    finally:
        remove_placement_group(group)
    if not came:
        there = {kind: int(ray.cluster_resources().get(kind, 0)) for kind in wanted}
        report(f"asked for {_spoken(wanted)}, and after {MINUTES:g} min there are {_spoken(there)}: going on")


def _asked(kind: str, wanted: int) -> int:
    """How many a group must hold so that the cluster has what is wanted: a group is given none that others hold."""
    missing = wanted - int(ray.cluster_resources().get(kind, 0))
    return missing + int(ray.available_resources().get(kind, 0)) if missing > 0 else 0


def _spoken(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {kind}s" for kind, count in counts.items())
