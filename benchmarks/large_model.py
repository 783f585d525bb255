"""What a base of 1.1 billion parameters needs from end to end: memory of each process, and seconds, of a small run.

    python benchmarks/large_model.py --old ../before --json

The base is a Llama of 22 layers (width 2,048) with random bfloat16 weights and the packaged model's tokenizer: memory
and speed do not depend on what the weights are. LoRA matrices in all layers, layers computed twice (checkpointing), two
steps of DP-SGD on 80 users, a few texts, held-out perplexity. `--old` runs it with another checkout too, after ours.

Of each kind of process the largest: `own_mb` is memory of its own, `file_mb` pages of files, which processes on one
machine share. `total_mb` is all of them at once, what they share counted once; it is looked at every two seconds.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rayprivacy.models.sources import resolve_base

LAYERS, WIDTH, USERS = 22, 2048, 80
KINDS = {"ray::RayTrainWorker": "training", "ray::MapWorker": "writing"}
LOOK_SECONDS, LOOKS_AT_SHARES = 0.5, 4
RECIPE = {
    "method": "generator",
    "corpus": {"source": "users.parquet"},
    "privacy": {"epsilon": 8.0, "delta": 1e-5, "account": "large"},
    "adapter": {"kind": "lora"},
    "training": {"sampling_rate": 0.1, "expected_batch": 8, "steps": 2, "chunk": 1, "max_tokens": 16},
    "resources": {"gradient_checkpointing": True, "batch_tokens": 256},
    "generation": {"texts": 8, "max_tokens": 8},
    "evaluation": {"users": 8},
}


def main() -> None:
    arguments = _arguments()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "base" / "config.json").exists():
        write_base(work / "base", arguments.layers, arguments.width)
    text = "hello there, how are you doing on this fine day of number"
    users = range(USERS)
    table = pa.table({"user": [f"u{user}" for user in users], "text": [f"{text} {user}?" for user in users]})
    pq.write_table(table, work / "users.parquet")
    named = RECIPE | {"model": {"base": str((work / "base").absolute()), "dtype": "bfloat16"}}
    (work / "recipe.yaml").write_text(yaml.safe_dump(named))
    rows = {"ours": measured(work, Path(__file__).parent.parent)}
    if arguments.old:
        rows["old"] = measured(work, arguments.old.resolve())
    size = sum(path.stat().st_size for path in (work / "base").glob("*.safetensors"))
    found = {"base_mb": size // 2**20, **rows, "cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps(found, indent=1) if arguments.json else found)


def write_base(folder: Path, layers: int, width: int) -> None:
    """Random weights, whose numbers nobody looks at."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_base("smollm2-135m"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="1GB")
    tokenizer.save_pretrained(folder)


def measured(work: Path, checkout: Path) -> dict[str, Any]:
    """The run with the package of a checkout, in a folder of its own."""
    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    begun = time.monotonic()
    own = {"privacy.ledger": f"sqlite:///{out}/ledger.db", "privacy.key": f"{out}/secret.key"}
    words = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    run = [sys.executable, "-m", "rayprivacy.cli", "run", "recipe.yaml", "--out", str(out / "run"), *words]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    with (out / "said.txt").open("w") as said:
        process = subprocess.Popen(run, cwd=work, env=environment, stdout=said, stderr=subprocess.STDOUT)
        peaks = _watch(psutil.Process(process.pid))
        if process.wait():
            raise SystemExit((out / "said.txt").read_text()[-2000:])

    return {"seconds": round(time.monotonic() - begun), **peaks}


def _watch(driver: psutil.Process) -> dict[str, Any]:
    """The largest process of each kind, and all of them at once, until the driver is gone."""
    peaks: dict[str, dict[str, int]] = defaultdict(lambda: {"own_mb": 0, "file_mb": 0})
    total = look = 0
    while driver.status() != psutil.STATUS_ZOMBIE:
        family = [driver, *driver.children(recursive=True)]
        for process in family:
            kind = "driver" if process == driver else _kind(process)
            own, shared = _memory(process)
            if kind:
                peak = peaks[kind]
                peaks[kind] = {"own_mb": max(own, peak["own_mb"]), "file_mb": max(shared, peak["file_mb"])}
        if look % LOOKS_AT_SHARES == 0:
            total = max(total, sum(map(_share, family)))
        look += 1
        time.sleep(LOOK_SECONDS)
    return {**peaks, "total_mb": total}


def _kind(process: psutil.Process) -> str:
    """Whether a process trains or writes; nothing for others, which hold no model."""
    try:
        title = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return next((kind for name, kind in KINDS.items() if title.startswith(name)), "")


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Memory of its own and pages of files, in MB."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        return tuple(int(lines[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile"))  # type: ignore[return-value]
    except (OSError, KeyError):
        return 0, 0


def _share(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss) // 2**20
    except psutil.Error:
        return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/large"), help="where base and runs are written")
    parser.add_argument("--old", type=Path, help="a checkout to run it with too")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
