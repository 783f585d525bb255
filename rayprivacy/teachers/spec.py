"""Where teacher actors find everything, how many there are, and which teachers each is handed at a time.

Pieces are runs of neighbours, whose length is a matter of performance. A teacher is a function of its own shard, and
answers in a block of VOTERS that its number fixes (see `head_kinds`). So no piece of either kind decides a bit of what
is released. A piece of training stays within one part file, which it reads its own shards of; a piece of voting holds
whole blocks, of any part.
"""

from dataclasses import dataclass
from pathlib import Path

import ray

from rayprivacy.core.errors import ClusterError, ReleaseError
from rayprivacy.core.private import Seal
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.teachers.head_kinds import VOTERS
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig
from rayprivacy.teachers.workspace import Workspace

SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")  # of all that actors do
PIECES = 4  # for each actor at least, so that the last ones to finish do not keep the others waiting for long
_ROUNDING = 1e-9  # of one divided by a share


@dataclass(frozen=True)
class GroupSpec:
    """One ensemble: paths and public settings only, safe as a Ray argument."""

    model: ModelConfig  # the public base
    teachers: TeachersConfig  # what a teacher is
    unit: PrivacyUnit  # what a shard moves as a whole, which decides what is encoded together
    shards: Path  # folder of the sharded corpus
    store: FeatureStore  # cached trunk states of the private text
    basis: Path  # file of the public bases
    warm: Path  # file of the public student that teachers start from (head kinds), with the tensor `matrix`
    workspace: Workspace  # folder and recipe digest of the ensemble
    gpu: bool = False  # whether its actors compute on a GPU


def training_pieces(teachers: TeachersConfig, actors: int) -> list[range]:
    """The teachers of each piece of training, ascending: at most a quarter of an actor's share."""
    parts = (teachers.members(part) for part in range(teachers.parts))
    return [piece for part in parts for piece in _cut(part, _quarter(teachers, actors))]


def voting_pieces(teachers: TeachersConfig, actors: int) -> list[range]:
    """The teachers of each piece of voting, ascending: a quarter of an actor's share, in whole blocks but the last."""
    blocks = -(-_quarter(teachers, actors) // VOTERS)
    return _cut(range(teachers.count), blocks * VOTERS)


def blocks_of(piece: range) -> list[range]:
    """The blocks in which the teachers of a piece of voting answer; the very last may be shorter than VOTERS."""
    return _cut(piece, VOTERS)


def _quarter(teachers: TeachersConfig, actors: int) -> int:
    return -(-teachers.count // (PIECES * actors))


def _cut(teachers: range, size: int) -> list[range]:
    return [teachers[at : at + size] for at in range(0, len(teachers), size)]


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


def actor_options(resources: ResourcesConfig) -> dict[str, object]:
    """What Ray is asked for, for each actor."""
    return {"num_cpus": resources.cpus_per_actor, "num_gpus": resources.gpus_per_actor, "scheduling_strategy": "SPREAD"}
