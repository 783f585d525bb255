"""The student behind one interface: a small matrix on the head (default), or LoRA."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rayprivacy.core.counting import Told, nobody
from rayprivacy.methods.seqpate.student import adapted_model, distill, fit_next_token
from rayprivacy.methods.seqpate.student_settings import StudentConfig
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded
from rayprivacy.models.queries import Queries


class Student(Protocol):
    """A language model that learns from public text and released votes. Learning returns another student."""

    @property
    def backbone(self) -> Backbone:
        """The public model that it stands on."""
        ...

    def hidden(self, rows: Encoded) -> torch.Tensor:
        """States whose product with the public head are the logits, float32 [rows, row_tokens, width]."""
        ...

    def fitted(
        self, rows: Encoded, steps: int, batch: int, learning_rate: float, seed: int, told: Told = nobody
    ) -> "Student":
        """Fit to next tokens: `batch` examples a step; `told` how many steps are done."""
        ...

    def distilled(
        self, queries: Queries, targets: torch.Tensor, rows: Encoded, config: StudentConfig, told: Told = nobody
    ) -> "Student":
        """Learn from targets [queries, k] (see `targets`) and from pseudo-sentences; `told` how many steps are done."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """What was trained."""
        ...

    def restored(self, state: dict[str, torch.Tensor]) -> "Student":
        """The student with a stored state."""
        ...

    def model(self) -> Any:
        """An ordinary Hugging Face model."""
        ...


@dataclass(frozen=True)
class HeadStudent:
    """A matrix between the public bases, on top of the frozen trunk.

    Attributes:
        backbone: the public base.
        adapter: its head adapter.
    """

    backbone: Backbone
    adapter: HeadAdapter

    @staticmethod
    def untrained(backbone: Backbone, basis: Basis, config: StudentConfig) -> "HeadStudent":
        """The public base itself."""
        most = len(basis.outward)
        return HeadStudent(backbone, HeadAdapter.zeros(basis, min(config.rank_in, most), min(config.rank_out, most)))

    def hidden(self, rows: Encoded) -> torch.Tensor:
        """Adapted states."""
        return self.adapter(rows.hidden)

    def fitted(
        self, rows: Encoded, steps: int, batch: int, learning_rate: float, seed: int, told: Told = nobody
    ) -> "HeadStudent":
        """Fit the matrix."""
        examples = rows.examples
        return self._with(
            fit_next_token(self.adapter, examples, self.backbone.head, steps, batch, learning_rate, seed, told).matrix
        )

    def distilled(
        self, queries: Queries, targets: torch.Tensor, rows: Encoded, config: StudentConfig, told: Told = nobody
    ) -> "HeadStudent":
        """Fit the matrix to votes."""
        head = self.backbone.head
        return self._with(distill(self.adapter, queries, targets, rows.examples, head, config, told).matrix)

    def state(self) -> dict[str, torch.Tensor]:
        """The matrix."""
        return {"matrix": self.adapter.matrix}

    def restored(self, state: dict[str, torch.Tensor]) -> "HeadStudent":
        """With this matrix."""
        return self._with(state["matrix"])

    def model(self) -> Any:
        """The adapter folded into an output head of its own."""
        return adapted_model(self.backbone, self.adapter)

    def _with(self, matrix: torch.Tensor) -> "HeadStudent":
        return HeadStudent(self.backbone, HeadAdapter(self.adapter.basis, matrix))
