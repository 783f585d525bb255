"""The work of one teacher actor: train on cached features, answer questions with partial sums. No Ray in here.

Calls are deterministic and draw no privacy noise, so that any of them may be done again elsewhere. Training leaves
teachers in the workspace. Votes are added up in this process, over all teachers it has been asked for, and only the sum
is handed out: a piece is in it once, however often it is asked for, and what dies with the process is asked anew. That
a teacher depends on its own shard alone, to the last bit, is as true on a GPU as on one thread of a CPU: see
`models.trainable.repeatable`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rayprivacy.core.errors import ClusterError, ReleaseError
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.features import Encoded, join
from rayprivacy.models.trainable import repeatable
from rayprivacy.teachers.encoding import shards_of
from rayprivacy.teachers.head_kinds import TeacherKind, on
from rayprivacy.teachers.lora_kind import LoraKind
from rayprivacy.teachers.spec import GroupSpec, blocks_of
from rayprivacy.teachers.square_kind import SquareKind
from rayprivacy.teachers.votes import PartialSum, Question, VoteTotal, summed_votes


def prepared_device(*, gpu: bool) -> torch.device:
    """The device of this process, which must be a GPU where it has a share of one, with repeatable kernels."""
    # One thread: the order of floating-point sums must not depend on how many cores a node happens to have.
    torch.set_num_threads(1)
    if not gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ClusterError(
            "resources.gpus_per_actor is set and torch finds no GPU on a node: install torch with CUDA there, or leave"
            " the key out."
        )
    return repeatable(torch.device("cuda"))


class _Shards(Sequence[Encoded]):
    """Some shards, each read when it is its turn: a large one need not share memory with its neighbours."""

    def __init__(self, spec: GroupSpec, names: Sequence[list[str]], device: torch.device) -> None:
        self._spec, self._names, self._device = spec, names, device

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        # A shard without groups has no width either: nothing is computed from it.
        return join(self._spec.store.read(self._names[index]), self._spec.teachers.row_tokens, 0).to(self._device)


class TeacherGroup:
    """Trains teachers and answers questions with them, piece by piece, on one thread or on a share of a GPU."""

    def __init__(self, spec: GroupSpec) -> None:
        self._device = prepared_device(gpu=spec.gpu)
        self.spec = spec
        self._built: tuple[Path | None, TeacherKind] | None = None
        self._asked: tuple[Question, VoteTotal] | None = None

    def _kind(self, rows: Path | None = None) -> TeacherKind:
        """The kind that answers from these public rows; the last one is kept, and the base only if it needs it."""
        rows = None if self.spec.teachers.kind == "square" else rows
        if self._built is None or self._built[0] != rows:
            self._built = rows, kind_for(self.spec, load_backbone(self.spec.model, self._device), rows)
        return self._built[1]

    def train(self, piece: range) -> None:
        """Train those of some teachers, neighbours whose shards lie in one part, that are not in the workspace."""
        workspace = self.spec.workspace
        groups = dict(zip(piece, shards_of(self.spec, piece), strict=True))
        sources = {teacher: workspace.source(names) for teacher, names in groups.items()}
        missing = workspace.missing(sources)
        if missing:
            shards = _Shards(self.spec, [groups[teacher] for teacher in missing], self._device)
            state = on(self._kind().train(shards), "cpu")
            workspace.write({teacher: sources[teacher] for teacher in missing}, state)

    def vote(self, piece: range, question: Question) -> None:
        """Add the votes of some teachers, whole blocks as `voting_pieces` cuts them, to this question's sum."""
        asked, total = self._total(question)
        kind = self._kind(asked.rows)
        for block in blocks_of(piece):
            if block.start not in total.teachers:
                state = on(self.spec.workspace.read(block), self._device)
                sums = summed_votes(kind, state, asked.queries, asked.mechanism)
                total.add(PartialSum(tuple(block), sums))

    def _total(self, question: Question) -> tuple[Question, VoteTotal]:
        """The sum so far, with the question as it was first heard: a kind prepares a question object once."""
        if self._asked is None or self._asked[0].digest != question.digest:
            total = VoteTotal(len(question.queries), question.mechanism.candidates)
            self._asked = replace(question, queries=question.queries.to(self._device)), total
        return self._asked

    def collect(self, digest: str) -> PartialSum:
        """The sum over all teachers that were added to the question of this name, if it is the last one asked."""
        if self._asked is None or self._asked[0].digest != digest:
            raise ReleaseError(
                "an actor was asked for the votes of another question: release nothing, run again with --resume."
            )
        return self._asked[1].partial


def kind_for(spec: GroupSpec, backbone: Backbone, rows: Path | None = None) -> TeacherKind:
    """Build the kind of an ensemble from its spec; 'lora' needs `rows`, encoded pseudo-sentences, to answer."""
    config = spec.teachers
    if config.kind == "square":
        device = str(backbone.head.device)
        warm = HeadAdapter(Basis.load(spec.basis, device), load_file(spec.warm, device)["matrix"])
        return SquareKind(config, warm, backbone.head)
    public = Encoded(**load_file(rows)) if rows else Encoded.empty(config.row_tokens, backbone.width)
    return LoraKind(backbone, config, public.to(backbone.head.device))
