"""Tiny models, a padded batch with weights, and clipped sums computed unit by unit in float64."""

import copy
import math
from dataclasses import dataclass

import engine_cases
import torch
import torch.nn.functional as F
from engine_cases import VOCABULARY
from torch import Tensor, nn
from transformers import BertForMaskedLM

from rayprivacy.dpsgd.clipping import Clipping

TOKENS, ROWS = 12, 6
FULL = ("gpt2", "gpt2_untied", "llama", "llama_untied", "bert")
LORA = ("gpt2_lora", "llama_lora", "bert_lora")


def tiny_model(kind: str) -> nn.Module:
    """One of the models of engines, with weights all of which matter: no zero biases, and no gains of 1."""
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = engine_cases.tiny_model(kind, seed=11)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


@dataclass(frozen=True)
class TinyBatch:
    """Token ids [rows, tokens], padded on the right, and the weight of predicting each from those before it."""

    ids: Tensor
    weights: Tensor
    rows_per_unit: int = 1

    def unit(self, index: int) -> "TinyBatch":
        """One unit's rows."""
        own = slice(index * self.rows_per_unit, (index + 1) * self.rows_per_unit)
        return TinyBatch(self.ids[own], self.weights[own], self.rows_per_unit)

    @property
    def units(self) -> int:
        return len(self.ids) // self.rows_per_unit


def tiny_batch(rows_per_unit: int = 1, rows: int = ROWS) -> TinyBatch:
    """Rows of several lengths with repeated tokens, whose units' weights sum to 1."""
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(1, VOCABULARY, (rows, TOKENS), generator=random)
    ids[:, ::3] = ids[:, :1]
    lengths = torch.randint(4, TOKENS + 1, (rows, 1), generator=random)
    held = torch.arange(TOKENS) < lengths
    weights = torch.rand(rows, TOKENS, generator=random) * held
    weights[:, 0] = 0
    by_unit = weights.view(-1, rows_per_unit * TOKENS)
    weights = (by_unit / by_unit.sum(1, keepdim=True)).view(rows, TOKENS)
    return TinyBatch(ids * held, weights, rows_per_unit)


def row_losses(model: nn.Module, batch: TinyBatch) -> Tensor:
    """Weighted next-token losses [rows]."""
    rows, tokens = batch.ids.shape
    positions = torch.arange(tokens).expand(rows, tokens)
    own_type = {"token_type_ids": torch.zeros_like(batch.ids)}
    extra = own_type if isinstance(model, BertForMaskedLM) else {"use_cache": False}
    logits = model(input_ids=batch.ids, position_ids=positions, **extra).logits[:, :-1]
    each = F.cross_entropy(logits.flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none").view(rows, -1)
    return (each * batch.weights[:, 1:]).sum(1)


def unit_gradients(model: nn.Module, batch: TinyBatch) -> list[dict[str, Tensor]]:
    """Each unit's gradient by name, from a float64 copy of the model and an ordinary backward pass per unit."""
    exact = copy.deepcopy(model).double()
    named = {name: parameter for name, parameter in exact.named_parameters() if parameter.requires_grad}
    found = []
    for index in range(batch.units):
        losses = row_losses(exact, batch.unit(index))
        gradients = torch.autograd.grad(losses.sum(), list(named.values()), allow_unused=True)
        pairs = zip(named.items(), gradients, strict=True)
        found.append({name: torch.zeros_like(own) if grad is None else grad for (name, own), grad in pairs})
    return found


def lengths_of(units: list[dict[str, Tensor]]) -> Tensor:
    """Norms, float64 [units]."""
    return torch.stack([torch.stack([part.norm() for part in unit.values()]).norm() for unit in units])


def clipped_sum(units: list[dict[str, Tensor]], clipping: Clipping) -> dict[str, Tensor]:
    """What the generator is meant to compute, straight from the definition of each kind of clipping."""
    total = {name: torch.zeros_like(part) for name, part in units[0].items()}
    for unit, whole in zip(units, lengths_of(units).tolist(), strict=True):
        for name, part in unit.items():
            if clipping.kind == "flat":
                coefficient = min(1.0, clipping.norm / whole)
            elif clipping.kind == "automatic":
                coefficient = clipping.norm / (whole + 0.01)
            else:
                coefficient = min(1.0, clipping.norm / math.sqrt(len(unit)) / max(part.norm().item(), 1e-300))
            total[name] += coefficient * part
    return total
