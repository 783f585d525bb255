"""What private gradients cost: clipped sums of ours and of Opacus, against an ordinary training step.

    python benchmarks/dpsgd.py --json
    python benchmarks/dpsgd.py --device cuda --json

On the CPU, a GPT-2 of 6 layers (width 384, vocabulary 8,192, weights not tied, because Opacus cannot) at length 128 and
batch 32, all parameters (`full`) and LoRA of rank 8 (`lora`). A step is a forward pass and whatever yields the sum of
(clipped) gradients; no noise and no optimizer. Methods take turns in one process with one thread; a ratio is the median
over rounds of a method's CPU time over that of the ordinary step in the same round. The allocator keeps memory that is
freed, as CUDA's does: page faults are up to a tenth of the time otherwise, for any method, depending on what ran before
(`--plain-malloc` leaves it as it is). Peak memory is that of a process of its own, with the allocator as it is.

What rows of users cost beside ordinary ones, and beside padded batches: `rows.py`.

On CUDA, GPT-2 and SmolLM2-135M sizes at several lengths: tokens per second at the largest batch that fits.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rayprivacy.dpsgd.clipping import BookKeeping, Clipping

NORM = 1.0
BATCH, LENGTH, VOCABULARY = 32, 128, 8192
METHODS = ("nonprivate", "ours", "opacus_ghost", "opacus_hooks")
CUDA_MODELS, CUDA_LENGTHS = ("gpt2", "smollm2-135m"), (128, 512, 1024)

Step = Callable[[Tensor], None]


def main() -> None:
    arguments = _arguments()
    keep = not arguments.plain_malloc
    figures = _cuda(arguments.rounds) if arguments.device == "cuda" else _cpu(arguments.rounds, keep)
    print(json.dumps(figures, indent=1) if arguments.json else _table(figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plain-malloc", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _cpu(rounds: int, keep: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": platform.machine(), "torch": torch.__version__, "allocator_keeps_memory": keep}
    for adapter in ("full", "lora"):
        times = _in_a_process(keep, _times, adapter, rounds)
        peaks = {method: _in_a_process(False, _peak_mb, adapter, method) for method in METHODS}
        found[adapter] = _figures(times) | {
            "peak_rss_mb": peaks,
            "peak_rss_ratio": round(peaks["ours"] / peaks["nonprivate"], 3),
        }
    return found


def _figures(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians of CPU seconds, of paired CPU ratios and of paired wall-clock ratios."""
    found: dict[str, Any] = {}
    base = times["nonprivate"]
    for method, own in times.items():
        found[f"{method}_s"] = round(statistics.median(cpu for cpu, _ in own), 3)
        if method != "nonprivate":
            for index, suffix in enumerate(("ratio", "wall_ratio")):
                pairs = [mine[index] / other[index] for mine, other in zip(own, base, strict=True)]
                found[f"{method}_{suffix}"] = round(statistics.median(pairs), 3)
    ghost = [his[0] / mine[0] for mine, his in zip(times["ours"], times["opacus_ghost"], strict=True)]
    return found | {"faster_than_opacus_ghost": round(statistics.median(ghost), 3)}


def _in_a_process(keep: bool, work: Callable[..., Any], *arguments: Any) -> Any:
    """One thread and memory of its own, which glibc keeps or gives back to the system as it is freed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        os.environ.pop(name, None)
        if keep:
            os.environ[name] = str(2**40)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _times(adapter: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """CPU and wall-clock seconds of every step, methods in turns; the first round warms up."""
    torch.set_num_threads(1)
    steps = {method: _step(method, _small_gpt2(adapter)) for method in METHODS}
    ids = _ids(BATCH, LENGTH, VOCABULARY)
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for turn in range(rounds + 1):
        for method in METHODS if turn % 2 else METHODS[::-1]:
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            steps[method](ids)
            spent = (time.process_time() - cpu, time.perf_counter() - wall)
            if turn:
                found[method].append(spent)
    return found


def _peak_mb(adapter: str, method: str) -> float:
    torch.set_num_threads(1)
    step, ids = _step(method, _small_gpt2(adapter)), _ids(BATCH, LENGTH, VOCABULARY)
    for _ in range(2):
        step(ids)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _small_gpt2(adapter: str) -> nn.Module:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=384,
            n_layer=6,
            n_head=6,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    if adapter == "lora":
        layers = ["c_attn", "c_proj", "c_fc"]
        lora = LoraConfig(r=8, target_modules=layers, fan_in_fan_out=True, lora_dropout=0.0, init_lora_weights=False)
        model = get_peft_model(model, lora)
    return model.train()


def _ids(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def _losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean next-token loss of each row [rows]."""
    positions = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1]
    each = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return each.view(len(ids), -1).mean(1)


def _step(method: str, model: nn.Module) -> Step:
    """One step's gradients, which are dropped."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    make = {"nonprivate": _ordinary, "ours": _ours, "opacus_ghost": _ghost, "opacus_hooks": _hooks}[method]
    compute = make(model, parameters)

    def step(ids: Tensor) -> None:
        compute(ids)
        for parameter in parameters:
            parameter.grad = None

    return step


def _ordinary(model: nn.Module, parameters: list[nn.Parameter]) -> Step:
    return lambda ids: _losses(model, ids).mean().backward()


def _ours(model: nn.Module, parameters: list[nn.Parameter]) -> Step:
    gradients = BookKeeping(model, Clipping(NORM))

    def step(ids: Tensor) -> None:
        sums = gradients(lambda: _losses(model, ids), 1)
        while sums:
            parameter, clipped_sum = sums.popitem()
            parameter.grad = clipped_sum().to(parameter.dtype)

    return step


def _ghost(model: nn.Module, parameters: list[nn.Parameter]) -> Step:
    ghost = GradSampleModuleFastGradientClipping(model, loss_reduction="mean", strict=False, max_grad_norm=NORM)

    def step(ids: Tensor) -> None:
        losses = _losses(ghost, ids)
        losses.mean().backward(retain_graph=True)
        for parameter in parameters:
            parameter.grad = None
        coefficients = ghost.get_clipping_coef()
        ghost.disable_hooks()
        (coefficients * losses).sum().backward()
        ghost.enable_hooks()

    return step


def _hooks(model: nn.Module, parameters: list[nn.Parameter]) -> Step:
    hooks = GradSampleModule(model, loss_reduction="mean", strict=False)

    def step(ids: Tensor) -> None:
        _losses(hooks, ids).mean().backward()
        samples: list[Any] = [parameter.grad_sample for parameter in parameters]
        norms = torch.stack([own.flatten(1).norm(dim=1) for own in samples], 1).norm(dim=1)
        coefficients = (NORM / norms).clamp(max=1)
        for parameter, own in zip(parameters, samples, strict=True):
            parameter.grad = torch.einsum("u,u...->...", coefficients, own)
            parameter.grad_sample = None

    return step


def _cuda(rounds: int) -> dict[str, Any]:
    """Tokens per second at the largest batch, in bfloat16 autocast with tied weights."""
    found: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in CUDA_MODELS:
        for length in CUDA_LENGTHS:
            for method in ("nonprivate", "ours"):
                found[f"{name} {length} {method}"] = _on_cuda(name, length, method, rounds)
    return found


def _on_cuda(name: str, length: int, method: str, rounds: int) -> dict[str, float]:
    model = _sized(name).cuda()
    step, vocabulary = _step(method, model), model.config.vocab_size
    batch, fits, best = 1, 0, math.inf
    while True:
        try:
            seconds = _cuda_seconds(step, _ids(batch, length, vocabulary).cuda(), rounds)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            return {"largest_batch": fits, "tokens_per_s": round(fits * length / best)}
        fits, best, batch = batch, seconds, 2 * batch


def _cuda_seconds(step: Step, ids: Tensor, rounds: int) -> float:
    """Median seconds of a step."""
    spent = []
    for turn in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            step(ids)
        torch.cuda.synchronize()
        if turn:
            spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def _sized(name: str) -> nn.Module:
    """Random weights in the shape of a published model."""
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).train()
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).train()


def _table(figures: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in figures.items())


if __name__ == "__main__":
    main()
