"""What one teacher actor does: encode shards, train stacks, answer queries with partial sums. No Ray in here.

Calls are deterministic and draw no privacy noise, so Ray may retry them freely: state lives in the workspace's markers
and not in the actor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import torch

from rayprivacy.corpus.shards import part_path, read_part
from rayprivacy.models.adapters import Basis
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.features import Features, encode_documents
from rayprivacy.models.queries import Queries
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.stack import summed_votes, train_stack
from rayprivacy.teachers.votes import PartialSum
from rayprivacy.teachers.workspace import Workspace


@dataclass(frozen=True)
class GroupSpec:
    """Where a group finds everything: paths and public settings only, safe as a Ray argument.

    Attributes:
        model: the public base.
        teachers: what a teacher is.
        shards: folder of the sharded corpus.
        basis: file of the public bases.
        workspace: folder and recipe digest of the ensemble.
    """

    model: ModelConfig
    teachers: TeachersConfig
    shards: Path
    basis: Path
    workspace: Workspace


class TeacherGroup:
    """Trains stacks and answers queries, one stack after the other, on one thread."""

    def __init__(self, spec: GroupSpec) -> None:
        # One thread: the order of floating-point sums must not depend on how many cores a node happens to have.
        torch.set_num_threads(1)
        self.spec = spec

    @cached_property
    def backbone(self) -> Backbone:
        """The public base, loaded once in this process."""
        return load_backbone(self.spec.model)

    @cached_property
    def basis(self) -> Basis:
        """The public bases."""
        return Basis.load(self.spec.basis)

    def train(self, part: int) -> int:
        """Train one stack unless its marker says it is done; returns the part."""
        source = self.spec.workspace.input_digest(part_path(self.spec.shards, part))
        if not self.spec.workspace.finished(part, source):
            table = read_part(self.spec.shards, part)
            shards = [self._encode(table, shard) for shard in self.spec.teachers.members(part)]
            matrices = train_stack(shards, self.basis, self.backbone.head, self.spec.teachers)
            self.spec.workspace.write(part, source, shards, matrices)
        return part

    def _encode(self, table: pa.Table, shard: int) -> Features:
        config = self.spec.teachers
        rows = table.filter(pa.compute.equal(table["shard"], shard))
        documents = [self.backbone.document(text, config.max_tokens) for text in rows["text"].to_pylist()]
        return encode_documents(self.backbone, documents, config.row_tokens, config.max_rows)

    def vote(self, parts: Sequence[int], queries: Queries, mechanism: VoteMechanism) -> PartialSum:
        """Sum the votes of whole stacks; nothing finer leaves this process."""
        head = self.backbone.head
        teachers = tuple(teacher for part in parts for teacher in self.spec.teachers.members(part))
        sums = sum(
            summed_votes(self.spec.workspace.matrices(part), self.basis, head, queries, mechanism) for part in parts
        )
        return PartialSum(tuple(parts), teachers, sums)  # type: ignore[arg-type]
