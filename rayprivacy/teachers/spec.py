"""Where a teacher actor finds everything: paths and public settings only, safe as a Ray argument."""

from dataclasses import dataclass
from pathlib import Path

from rayprivacy.core.units import PrivacyUnit
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.workspace import Workspace


@dataclass(frozen=True)
class GroupSpec:
    """One ensemble.

    Attributes:
        model: the public base.
        teachers: what a teacher is.
        unit: what a shard moves as a whole, which decides what is encoded together.
        shards: folder of the sharded corpus.
        store: cached trunk states of the private text.
        basis: file of the public bases.
        warm: file of the public student that teachers start from (head kinds), with the tensor `matrix`.
        workspace: folder and recipe digest of the ensemble.
        gpu: whether its actors compute on a GPU.
    """

    model: ModelConfig
    teachers: TeachersConfig
    unit: PrivacyUnit
    shards: Path
    store: FeatureStore
    basis: Path
    warm: Path
    workspace: Workspace
    gpu: bool = False
