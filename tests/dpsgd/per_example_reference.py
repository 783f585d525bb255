"""Tiny models, a padded batch with weights, and clipped sums computed unit by unit in float64."""

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rayprivacy.dpsgd.clipping import Clipping

VOCABULARY, TOKENS, ROWS = 97, 12, 6
FULL = ("gpt2", "gpt2-untied", "llama", "llama-untied", "bert")
LORA = ("gpt2-lora", "llama-lora", "bert-lora")
ADAPTED = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "llama": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "bert": ["query", "value", "dense"],
}


def tiny_model(kind: str) -> nn.Module:
    """A random model of two layers, in training mode, without dropout; kinds end with `-untied` or `-lora`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        family, _, variant = kind.partition("-")
        model = {"gpt2": _gpt2, "llama": _llama, "bert": _bert}[family](variant != "untied")
        if variant == "lora":
            lora = LoraConfig(
                r=4,
                target_modules=ADAPTED[family],
                fan_in_fan_out=family == "gpt2",
                lora_dropout=0.0,
                init_lora_weights=False,
            )
            model = get_peft_model(model, lora)
        for parameter in model.parameters():  # zero biases and unit gains would hide mistakes
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.train()


def _gpt2(tied: bool) -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _llama(tied: bool) -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def _bert(tied: bool) -> nn.Module:
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=tied,
    )
    return BertForMaskedLM(config)


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
