"""How fast a CPU samples text from a released model, by engine: tokens per CPU second.

    python benchmarks/decoding.py --json
    python benchmarks/decoding.py --json --quality 2000

Every engine samples the same number of tokens from SmolLM2-135M in a process of its own, on one thread, and the engines
take turns, so that other work on the machine hits all of them. They are timed with the machine's own instructions
(`native`), and as on a machine without AVX-512 and AMX (`avx2`). No variable takes AVX-512 away from ONNX Runtime: on a
processor that has it, give `--onnxruntime-without-avx512` a folder with a copy of the package whose checks of the
processor were patched, or it is timed as `native` alone. Loading and converting the model is not timed: it is
told beside. `--quality` samples so many texts with each engine, at its native speed, and compares their perplexity
under the model, and MAUVE against texts of transformers.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from decoding_quality import quality

from rayprivacy.corpus.public import load_prompts
from rayprivacy.evaluation.fidelity import has_mauve
from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.generation.fast import convert
from rayprivacy.generation.onnx import OnnxDecoder
from rayprivacy.generation.settings import ONNX, SamplingConfig
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
SETTINGS: dict[str, dict[str, str]] = {"avx2": AVX2, "native": {}}
PLAIN = "transformers"
ENGINES = (PLAIN, "transformers_static_cache", ONNX)
BATCHES = {1: 6, 16: 32, 64: 64}  # and how many texts are timed
PROMPT_WORDS = (4, 4)


def main() -> None:
    arguments = _arguments()
    if arguments.engine:
        print(json.dumps(_measure(arguments.engine, arguments)))
        return
    if arguments.quality and not has_mauve():
        raise SystemExit("--quality needs mauve-text: pip install 'rayprivacy[mauve]'")
    figures = _quality(arguments) if arguments.quality else _speeds(arguments)
    print(json.dumps(figures | _machine(), indent=1))


def _speeds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds of tokens per CPU second, by instructions, engine and batch."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    timed = {setting: [each for each in ENGINES if _is_timed(each, setting, arguments)] for setting in SETTINGS}
    for _ in range(arguments.rounds):
        for setting, engines in timed.items():
            for engine in engines:
                for what, value in _in_a_process(engine, setting, arguments).items():
                    found[setting, engine, what].append(value)
    speeds: dict[str, Any] = {setting: {engine: {} for engine in engines} for setting, engines in timed.items()}
    for (setting, engine, what), values in found.items():
        speeds[setting][engine][what] = round(median(values), 1)
    for setting, each in speeds.items():
        plain = each[PLAIN]
        each["over_plain"] = {
            engine: {str(batch): round(each[engine][str(batch)] / plain[str(batch)], 2) for batch in BATCHES}
            for engine in timed[setting][1:]
        }
    return {**speeds, "tokens": arguments.tokens, "rounds": arguments.rounds}


def _is_timed(engine: str, setting: str, arguments: argparse.Namespace) -> bool:
    """Without a patched copy ONNX Runtime uses AVX-512 where the processor has it, whatever is asked for."""
    return (engine, setting) != (ONNX, "avx2") or bool(arguments.onnxruntime_without_avx512) or not _has_avx512()


def _has_avx512() -> bool:
    path = Path("/proc/cpuinfo")
    return not path.exists() or "avx512f" in path.read_text()


def _in_a_process(engine: str, setting: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--engine", engine, "--tokens", str(arguments.tokens)]
    if arguments.quality:
        command += ["--quality", str(arguments.quality)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **SETTINGS[setting]}
    if setting == "avx2" and arguments.onnxruntime_without_avx512:
        environment["PYTHONPATH"] = arguments.onnxruntime_without_avx512
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(engine: str, arguments: argparse.Namespace) -> Any:
    torch.set_num_threads(1)
    backbone = load_backbone(ModelConfig(dtype="float32"))
    with tempfile.TemporaryDirectory() as scratch:
        if engine != ONNX:
            return _sampled(_transformers(engine, backbone), backbone, arguments)
        began = time.process_time()
        folder = convert(backbone.model, backbone, Path(scratch))
        told = {"conversion_cpu_s": time.process_time() - began}
        found = _sampled(OnnxDecoder(folder, backbone).sample, backbone, arguments)
    return found if arguments.quality else told | found


Sampler = Callable[..., list[list[int]]]


def _transformers(engine: str, backbone: Backbone) -> Sampler:
    if engine != PLAIN:
        backbone.model.generation_config.cache_implementation = "static"
    return partial(sample, backbone.model, backbone)


def _sampled(sampler: Sampler, backbone: Backbone, arguments: argparse.Namespace) -> Any:
    """Tokens per CPU second by batch, or the texts."""
    if arguments.quality:
        config = SamplingConfig(texts=arguments.quality, max_tokens=arguments.tokens)
        return sampler(cut_prompts(load_prompts(None), config), config)
    return {str(batch): _rate(sampler, backbone, batch, texts, arguments.tokens) for batch, texts in BATCHES.items()}


def _rate(sampler: Sampler, backbone: Backbone, batch: int, texts: int, tokens: int) -> float:
    """Tokens that stand in the texts; those that are computed behind an end are not counted."""
    config = SamplingConfig(texts=texts, max_tokens=tokens, prompt_words=PROMPT_WORDS)
    prompts = cut_prompts(load_prompts(None), config)
    sampler(prompts[:1], config.model_copy(update={"max_tokens": 2}))  # the first call makes ready
    began = time.process_time()
    documents = sampler(prompts, config, batch)
    spent = time.process_time() - began
    new = sum(len(document) - len(backbone.prefix(prompt)) for document, prompt in zip(documents, prompts, strict=True))
    return new / spent


def _quality(arguments: argparse.Namespace) -> dict[str, Any]:
    texts = {engine: _in_a_process(engine, "native", arguments) for engine in (PLAIN, ONNX)}
    return quality(load_backbone(ModelConfig(dtype="float32")), texts, PLAIN)


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "load": round(os.getloadavg()[1], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "onnxruntime")},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object, which is all there is")
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of a text, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quality", type=int, default=0, help="compare so many texts of each engine instead")
    parser.add_argument("--onnxruntime-without-avx512", metavar="FOLDER", default="", help="of a patched copy")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
