"""A few released texts for the page: the same ones each time, never hand-picked."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError
from rayprivacy.reporting.format import CONTROL
from rayprivacy.runs.drawn import rows_at

SAMPLES = 20
SEED = 20
LONGEST = 600


def draw_samples(path: Path) -> list[str]:
    """Up to 20 texts drawn with a fixed seed, in file order, each cut at 600 characters."""
    try:
        count = pq.read_metadata(path).num_rows
        places = sorted(random.Random(SEED).sample(range(count), min(SAMPLES, count)))
        rows = [text for table in rows_at(path, np.array(places), ["text"]) for text in table["text"].to_pylist()]
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the directory of a finished run.") from None
    except (pa.ArrowInvalid, KeyError):
        raise ConfigError(f"{path} is no Parquet file with a column 'text': let the run write it again.") from None
    return [_printable(text or "") for text in rows]


def _printable(text: str) -> str:
    text = CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " […]"
