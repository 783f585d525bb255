"""Timed kernels: `python benchmarks/kernels.py` prints what a core does in a CPU second.

The ratios of `rayprivacy.runs.estimate` are from it. It takes about ten seconds, and times work that is shaped like
that of a small model: a few layers over rows of 64 tokens, over one token of 128 texts, and forwards and backwards; one
product with a large head, and many small ones. Where ONNX Runtime is installed, it samples with such layers; elsewhere,
sampling is taken to be like one token of many texts in float32.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rayprivacy.core.console import cores
from rayprivacy.generation.settings import BATCH, SamplingConfig, has_onnx

WIDTH, INNER, HEADS, LAYERS = 576, 1536, 9, 2
NEW_TOKENS = 8  # of a text that is sampled
ROW_TOKENS = 64
VOCABULARY = 8_192
TEACHERS, EXAMPLES, RANK, SHORTLIST = 20, 64, 128, 1024
SECONDS = 0.4  # for each kernel
# Rows, tokens, and whether backwards too.
SHAPES = {"encode": (4, ROW_TOKENS, False), "decode": (128, 1, False), "train": (1, ROW_TOKENS, True)}
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _Layer(nn.Module):
    """One layer as in Llama, with as many key heads as query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.attention = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)])
        self.inner = nn.ModuleList([nn.Linear(WIDTH, INNER, bias=False) for _ in range(2)])
        self.outer = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = states.shape
        normed = self.norms[0](states)
        q, k, v = (part(normed).view(rows, tokens, HEADS, -1).transpose(1, 2) for part in self.attention[:3])
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        states = states + self.attention[3](seen.transpose(1, 2).reshape(rows, tokens, WIDTH))
        normed = self.norms[1](states)
        moved: torch.Tensor = states + self.outer(nn.functional.silu(self.inner[0](normed)) * self.inner[1](normed))
        return moved


def measured() -> dict[str, Any]:
    """`cpus`, and `flops` per second of one core by kernel and, for those of the trunk, number format."""
    torch.set_num_threads(1)
    flops = {"product": _rate(*_product()), "batched": _rate(*_batched())}
    for name, dtype in FORMATS.items():
        for kernel, (rows, tokens, train) in SHAPES.items():
            flops[f"{kernel} {name}"] = _rate(*_trunk(rows, tokens, dtype, train))
    flops["sample"] = _rate(*_sampling()) if has_onnx() else flops["decode float32"]
    return {"cpus": cores(), "flops": flops}


def _sampling() -> tuple[Callable[[], Any], float]:
    """A batch of texts by ONNX Runtime, from a model of no tokenizer whose texts do not end."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from rayprivacy.generation.onnx import OnnxDecoder, write_graph
    from rayprivacy.models.backbone import Documents

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=ROW_TOKENS,
    )
    model = LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        decoder = OnnxDecoder(write_graph(model, Path(folder) / "model"), Documents(None, -1, -1))
    used = sum(weight.numel() for weight in model.parameters()) - VOCABULARY * WIDTH  # tokens are looked up
    asked, settings = [[number] for number in range(BATCH)], SamplingConfig(max_tokens=NEW_TOKENS)
    return lambda: decoder.continued(asked, settings), 2.0 * used * BATCH * NEW_TOKENS


def _trunk(rows: int, tokens: int, dtype: torch.dtype, train: bool) -> tuple[Callable[[], Any], float]:
    layers = nn.Sequential(*[_Layer() for _ in range(LAYERS)]).to(dtype)
    states = torch.randn(rows, tokens, WIDTH).to(dtype)
    flops = 2.0 * sum(weight.numel() for weight in layers.parameters()) * rows * tokens

    def forward() -> None:
        with torch.no_grad():
            layers(states)

    def both() -> None:
        layers(states).float().square().mean().backward()

    return (both, 3 * flops) if train else (forward, flops)


def _product() -> tuple[Callable[[], Any], float]:
    states, head = torch.randn(256, WIDTH), torch.randn(VOCABULARY, WIDTH)
    return lambda: states @ head.T, 2.0 * 256 * WIDTH * VOCABULARY


def _batched() -> tuple[Callable[[], Any], float]:
    states, heads = torch.randn(TEACHERS, EXAMPLES, RANK), torch.randn(TEACHERS, RANK, SHORTLIST)
    return lambda: torch.bmm(states, heads), 2.0 * TEACHERS * EXAMPLES * RANK * SHORTLIST


def _rate(call: Callable[[], Any], flops: float) -> float:
    """Operations per CPU second of the quickest call: other processes take time from this one, and are not counted."""
    best, until = float("inf"), time.process_time() + SECONDS
    while best == float("inf") or time.process_time() < until:
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return flops / best


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(measured()))
