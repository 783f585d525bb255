"""What a rank holds, by ZeRO stage: two ranks train a GPT-2 of 6 layers (width 384, vocabulary 8,192) with DP-AdamW.

    python benchmarks/zero_memory.py --json

Each row is a pair of fresh processes in one gloo group, on the CPU with one thread each, and gives the larger of the
two ranks, in MB. `weights`, `masters`, `moments` are tensors held between steps: what the model keeps, float32 copies
beside it, and the optimizer's state; with offload they are the host's. `tensors` is all tensors between steps, buffers
and kept gradients too. `peak` is how much the process has grown at most since before the model was made, during steps
2 and 3 of 2 rows of 32 tokens: with activations, gradients, noise, and about 45 MB of DeepSpeed's own modules. Freed
memory goes back to the system at once (glibc's thresholds are set so). `seconds` is the median step, and says little.
"""

import argparse
import datetime
import gc
import json
import multiprocessing
import os
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROWS = [(None, False), (0, False), (1, False), (2, False), (3, False), (2, True), (3, True)]
STEPS, UNITS, LENGTH, VOCABULARY = 3, 2, 32, 8192
MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    found = [measured(zero, offload) for zero, offload in ROWS]
    print(json.dumps(found, indent=1) if arguments.json else _table(found))


def measured(zero: int | None, offload: bool, ranks: int = 2) -> dict[str, Any]:
    """One row: the larger rank's figures."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    ends = [context.Pipe() for _ in range(ranks)]
    processes = [
        context.Process(target=_rank, args=(rank, ranks, port, zero, offload, there))
        for rank, (_, there) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    own = [here.recv() for here, _ in ends]
    for process in processes:
        process.join()
    name = "plain" if zero is None else f"ZeRO {zero}{', offload' * offload}"
    return {"engine": name, "ranks": ranks} | {key: round(max(each[key] for each in own), 3) for key in own[0]}


def _rank(rank: int, world: int, port: int, zero: int | None, offload: bool, answer: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    wait = datetime.timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world, timeout=wait)
    answer.send(_figures(zero, offload))
    dist.destroy_process_group()


def _figures(zero: int | None, offload: bool) -> dict[str, float]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from rayprivacy.core.keys import Key
    from rayprivacy.dpsgd.batches import Batch
    from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
    from rayprivacy.dpsgd.losses import row_losses
    from rayprivacy.dpsgd.noise import KeyedNoise
    from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
    from rayprivacy.release.step_mechanism import NoisySteps

    if zero is not None:  # imports are no part of what a stage holds
        from rayprivacy.dpsgd.engines.zero import find_deepspeed

        find_deepspeed(torch.device("cpu"))
    before = _status("VmRSS")
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=384, n_layer=6, n_head=6, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config)
    training = DpSgdConfig(steps=STEPS, optimizer=OptimizerConfig(learning_rate=1e-4))
    noise = StepNoise(KeyedNoise(Key.for_tests(), "memory"), NoisySteps(0.1, 1.0, 1.0, STEPS), 16.0)
    engine: Any = make_engine(model, training, noise, EngineConfig(zero=zero, offload=offload), row_losses)
    batch = Batch(torch.randint(VOCABULARY, (UNITS, LENGTH)), torch.full((UNITS, LENGTH), 1 / LENGTH), 1)
    seconds = []
    for step in range(STEPS):
        if step == 1:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        began = time.perf_counter()
        engine.step(step, [batch])
        seconds.append(time.perf_counter() - began)
    found = {name: size / MB for name, size in _held(engine).items()}
    found["peak"] = (_status("VmHWM") - before) / MB
    return found | {"seconds": statistics.median(seconds)}


def _held(engine: Any) -> dict[str, int]:
    """Bytes of tensors between steps; memory that several tensors share counts once, in the order below."""
    import torch

    gc.collect()
    optimizer, partitions = engine._noisy._optimizer, engine._noisy._partitions
    weights = [t for p in engine._model.parameters() for t in (p.data, getattr(p, "ds_tensor", None)) if t is not None]
    masters = [partition.tensor for partition in partitions]
    moments = [value for state in optimizer.state.values() for value in state.values()]
    seen: set[int] = set()
    found = {}
    for name, tensors in (("weights", weights), ("masters", masters), ("moments", moments)):
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        found[name] = sum(size for place, size in storages.items() if place not in seen)
        seen |= storages.keys()
    alive = (thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor))
    found["tensors"] = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())
    return found


def _status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _table(found: list[dict[str, Any]]) -> str:
    keys = list(found[0])
    lines = [keys, *([str(row[key]) for key in keys] for row in found)]
    return "\n".join("  ".join(f"{cell:>16}" for cell in line) for line in lines)


if __name__ == "__main__":
    main()
