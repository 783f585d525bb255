"""How many teacher actors a cluster has room for, and what each of them asks Ray for."""

from typing import Any

import ray

from rayprivacy.core.errors import ClusterError
from rayprivacy.teachers.settings import ResourcesConfig

_ROUNDING = 1e-9  # of one divided by a share


def places(resources: ResourcesConfig) -> int:
    """The number of actors: what the recipe asks for, or as many as the cluster has room for."""
    cluster, share = ray.cluster_resources(), resources.gpus_per_actor
    if share and not cluster.get("GPU"):
        raise ClusterError(
            f"resources.gpus_per_actor is {share:g} and the cluster has no GPU: leave the key out, or ask for machines"
            " with resources.stages."
        )
    rooms = [int(cluster.get("CPU", 1) / resources.cpus_per_actor)]
    if share:
        gpus = int(cluster["GPU"])  # a share of less than one lies on one of them
        rooms.append(gpus * int(1 / share + _ROUNDING) if share <= 1 else int(gpus / share))
    return resources.actors or max(1, min(rooms))


def actor_options(resources: ResourcesConfig) -> dict[str, Any]:
    """What Ray is asked for, for each actor."""
    return {
        "num_cpus": resources.cpus_per_actor,
        "num_gpus": resources.gpus_per_actor,
        "scheduling_strategy": "SPREAD",
    }
