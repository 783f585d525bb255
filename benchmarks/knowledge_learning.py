"""A language model that learns texts by heart, for as long as there is time, and goes on where it stopped.

It is trained as `rayprivacy.models.pretraining` trains one (all weights, AdamW, the same rows and loss), but its state
is kept, so that an hour of training fits between other work; steps begin small, and no gradient is longer than 1, since
at 5e-4 the loss rose again without that; and attention is computed in the plain way, which on a CPU takes a fifth less
time than the default for rows as short as these.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rayprivacy.models import pretraining
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Row
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import merged, trainable

WARM_STEPS = 20  # over which the learning rate grows to what it stays at
KEPT, HELD_ROWS, TOLD = 300, 16, 10  # seconds between two states; rows whose loss is measured; steps between two lines


@dataclass(frozen=True)
class Learning:
    """How texts are learnt: steps of `batch` rows of `row_tokens` each, at one learning rate but for the first."""

    steps: int
    learning_rate: float
    batch: int = 4
    row_tokens: int = 256


@dataclass
class State:
    """Where a training stands; what is kept of it is all that the next step depends on."""

    model: Any
    optimizer: torch.optim.Optimizer
    done: int = 0
    seconds: float = 0.0  # of a processor
    losses: list[float] = field(default_factory=list)  # in nats, of each step

    def keep(self, path: Path) -> None:
        """Write it; whoever is killed meanwhile has the state before."""
        numbers = {"done": self.done, "seconds": self.seconds, "losses": self.losses}
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(numbers | parts, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def found(self, path: Path) -> "State":
        """The same where it was kept; as it is if it was not."""
        if path.exists():
            kept = torch.load(path)
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.done, self.seconds, self.losses = kept["done"], kept["seconds"], kept["losses"]
        return self


def learnt(
    backbone: Backbone, texts: Sequence[str], how: Learning, kept: Path, minutes: float
) -> tuple[Any, dict[str, Any]] | None:
    """The model that learnt the texts, and figures; None where time ended before, and the next call goes on."""
    held, others = (list(pretraining._rows(backbone, part, how.row_tokens)) for part in pretraining.held_out(texts))
    model = trainable(backbone, AdapterConfig(kind="full"))
    model.set_attn_implementation("eager")
    state = State(model, torch.optim.AdamW(model.parameters(), lr=how.learning_rate, fused=True)).found(kept)
    loss, calls = pretraining._loss_in(backbone.model.dtype), max(1, pretraining.CALL_TOKENS // how.row_tokens)
    objective = pretraining.Objective[Row](loss, pretraining._predicted, calls)
    if state.done > how.steps:
        raise SystemExit(f"{kept} has {state.done} steps, and {how.steps} are asked for: ask for more, or remove it.")
    _train(state, objective, others, how, kept, time.monotonic() + 60 * minutes)
    if state.done < how.steps:
        return None
    model.set_attn_implementation(backbone.model.config._attn_implementation)
    return merged(model, backbone), {
        "epochs": round(how.steps * how.batch / len(others), 3),
        "loss_first": round(state.losses[0], 3),
        "loss_held_out": round(objective.mean_loss(model, held[:HELD_ROWS]), 3),
        "cpu_s": round(state.seconds),
    }


def _train(state: State, objective: Any, rows: Sequence[Row], how: Learning, kept: Path, until: float) -> None:
    """Take steps up to the last one, or as long as there is time, and keep where it ended."""
    before, begun, last = state.seconds, time.process_time(), time.monotonic()
    drawn = pretraining.endlessly(rows, np.random.default_rng(pretraining.SEED))
    drawn = itertools.islice(drawn, state.done * how.batch, None)
    while state.done < how.steps and time.monotonic() < until:
        state.optimizer.zero_grad()
        batch = [*itertools.islice(drawn, how.batch)]
        losses = [float(_backward(part)) for part in objective.parts(state.model, batch)]
        torch.nn.utils.clip_grad_norm_(state.model.parameters(), pretraining.LARGEST_NORM)
        for group in state.optimizer.param_groups:
            group["lr"] = how.learning_rate * min(1.0, (state.done + 1) / WARM_STEPS)
        state.optimizer.step()
        state.losses.append(sum(losses))
        state.done, state.seconds = state.done + 1, before + time.process_time() - begun
        if state.done % TOLD == 0:
            print(f"{state.done} of {how.steps} steps, loss {np.mean(state.losses[-TOLD:]):.3f}", flush=True)
        if time.monotonic() > last + KEPT:
            state.keep(kept)
            last = time.monotonic()
    state.keep(kept)


def _backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss.detach()
