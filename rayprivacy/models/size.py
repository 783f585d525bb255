"""How large a base model is, without loading it, for estimates of time. Imports no torch."""

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rayprivacy.models.sources import check_files

_KNOWN = {"smollm2-135m": (134_515_008, 49_152, 576, 30), "minilm-l6": (22_565_376, 30_522, 384, 6)}
_WIDTH, _DEPTH = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "num_layers")


@dataclass(frozen=True)
class ModelSize:
    """Size of a model, a tied head counted once; no gradient goes through its `frozen` parameters."""

    parameters: float
    vocabulary: float
    width: float
    layers: float
    frozen: float = 0

    @property
    def head(self) -> float:
        """Floating-point operations of the output head for one token."""
        return 2.0 * self.vocabulary * self.width

    def forward(self, tokens: float) -> float:
        """Floating-point operations of the model over some tokens."""
        return 2.0 * self.parameters * tokens

    def trained(self, tokens: float) -> float:
        """Those of a forward pass, and of a backward pass down to the lowest parameters that are trained."""
        return self.forward(tokens) + 4.0 * (self.parameters - self.frozen) * tokens


UNKNOWN_SIZE = ModelSize(math.nan, math.nan, math.nan, math.nan)  # so that what is computed from it is unknown too


def size_of(base: str) -> ModelSize:
    """The size of a model that we know by name, or of a directory with safetensors; unknown for others.

    Raises:
        ConfigError: the directory is no model (`check_files`).
    """
    if base in _KNOWN:
        return ModelSize(*_KNOWN[base])
    folder = Path(os.path.expanduser(base))
    if folder.is_dir():
        check_files(base, folder)
    try:
        config = json.loads((folder / "config.json").read_text())
        width, layers = [next(int(config[name]) for name in names if name in config) for names in (_WIDTH, _DEPTH)]
        parameters = sum(_weights(path) for path in folder.glob("*.safetensors"))
        return ModelSize(parameters, int(config["vocab_size"]), width, layers) if parameters else UNKNOWN_SIZE
    except (OSError, ValueError, KeyError, TypeError, StopIteration, struct.error):
        return UNKNOWN_SIZE  # a hub id, or a folder that loading will complain about


def _weights(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > path.stat().st_size:
            raise ValueError("no safetensors, whose header is a part of the file")
        header = json.loads(file.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
