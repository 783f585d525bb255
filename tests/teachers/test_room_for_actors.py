"""As many actors as a cluster has room for, on shares of its GPUs where these are asked for."""

from typing import Any

import pytest
import ray

from rayprivacy.core.errors import ClusterError, ConfigError
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import actor_options, places

CLUSTER = {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("asked", "cluster", "room"),
    [
        ({}, CLUSTER, 8),
        ({"cpus_per_actor": 0.5}, CLUSTER, 16),
        ({"cpus_per_actor": 16}, CLUSTER, 1),
        ({"actors": 5}, CLUSTER, 5),
        ({"gpus_per_actor": 1}, CLUSTER, 2),
        ({"gpus_per_actor": 2}, CLUSTER, 1),
        ({"gpus_per_actor": 0.4}, CLUSTER, 4),  # two on each GPU: 0.8 of it
        ({"gpus_per_actor": 0.1}, CLUSTER, 8),  # as many as there are CPUs
        ({"gpus_per_actor": 0.1}, CLUSTER | {"CPU": 64.0}, 20),
        ({"gpus_per_actor": 0.5, "actors": 7}, CLUSTER, 7),
        ({"gpus_per_actor": 4}, CLUSTER, 1),  # Ray waits for a node that has four
    ],
)
def test_the_number_of_actors(
    asked: dict[str, Any], cluster: dict[str, float], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: cluster)
    assert places(ResourcesConfig.parse(asked)) == room


@pytest.mark.parametrize("actors", [0, 3])
def test_a_cluster_without_a_gpu_is_told_so(actors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    with pytest.raises(ClusterError, match=r"gpus_per_actor is 0\.25 and the cluster has no GPU: leave the key out"):
        places(ResourcesConfig(gpus_per_actor=0.25, actors=actors))


def test_an_actor_asks_for_its_share() -> None:
    options = actor_options(ResourcesConfig(cpus_per_actor=2, gpus_per_actor=0.25))
    assert (options["num_cpus"], options["num_gpus"]) == (2, 0.25)


@pytest.mark.parametrize("share", [1.5, -0.1, float("nan"), float("inf")])
def test_a_share_that_ray_cannot_give_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="gpus_per_actor"):
        ResourcesConfig.parse({"gpus_per_actor": share})
