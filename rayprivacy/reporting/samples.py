"""A few released texts for the page: the same ones each time, never hand-picked."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError
from rayprivacy.reporting.format import CONTROL

SAMPLES = 20
SEED = 20
LONGEST = 600


def draw_samples(path: Path) -> list[str]:
    """Up to 20 texts drawn with a fixed seed, in file order, each cut at 600 characters.

    Raises:
        ConfigError: the file is missing, not Parquet, or has no column 'text'.
    """
    try:
        column = pq.read_table(path, columns=["text"]).column("text")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the directory of a finished run.") from None
    except (pa.ArrowInvalid, KeyError):
        raise ConfigError(f"{path} is no Parquet file with a column 'text': let the run write it again.") from None
    rows = sorted(random.Random(SEED).sample(range(len(column)), min(SAMPLES, len(column))))
    return [_printable(column[row].as_py() or "") for row in rows]


def _printable(text: str) -> str:
    text = CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " […]"
