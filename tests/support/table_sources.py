"""The same rows as files, as a Dataset, and as tables of every kind, written by the libraries themselves."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_jobs import SENTENCES, USERS, sentence

CATALOGUE = "tests"
_FOLDER = TemporaryDirectory()  # as long as the process: pyiceberg reads the environment once, when it is imported
os.environ |= {
    f"PYICEBERG_CATALOG__{CATALOGUE.upper()}__URI": f"sqlite:///{_FOLDER.name}/catalogue.db",
    f"PYICEBERG_CATALOG__{CATALOGUE.upper()}__WAREHOUSE": f"file://{_FOLDER.name}/warehouse",
}
NUMBERED = pa.table(
    {
        "who": [f"user-{n % USERS}" for n in range(USERS * SENTENCES)],
        "said": [sentence(n % USERS, n // USERS) for n in range(USERS * SENTENCES)],
        "number": range(USERS * SENTENCES),
    }
)
MORE = pa.table({"who": ["eve", "eve", "dan"], "said": ["one", "two", "three"], "number": [997, 998, 999]})


def parquet(folder: Path, rows: pa.Table) -> str:
    (folder / "files" / "_old").mkdir(parents=True)
    pq.write_table(MORE, folder / "files" / "_old" / "gone.parquet")
    for start in (0, 50):
        pq.write_table(rows.slice(start, 50 if start == 0 else None), folder / "files" / f"{start}.parquet")
    return str(folder / "files")


def delta(folder: Path, rows: pa.Table) -> str:
    library = pytest.importorskip("deltalake")
    library.write_deltalake(str(folder / "delta"), rows, mode="append")
    return str(folder / "delta")


def lance(folder: Path, rows: pa.Table) -> str:
    library = pytest.importorskip("lance")
    place = str(folder / "chats.lance")
    library.write_dataset(rows, place, mode="append" if os.path.exists(place) else "create")
    return place


def iceberg(folder: Path, rows: pa.Table) -> str:
    catalogue = open_catalogue()
    space = f"of_{folder.name.replace('-', '_')}"
    catalogue.create_namespace_if_not_exists(space)
    catalogue.create_table_if_not_exists(f"{space}.chats", rows.schema).append(rows)
    return f"iceberg:{CATALOGUE}.{space}.chats"


def hugging_face(folder: Path, rows: pa.Table) -> str:
    library = pytest.importorskip("datasets")
    library.Dataset(rows).save_to_disk(str(folder / "saved"), num_shards=2)
    return str(folder / "saved")


TABLES = {"delta": delta, "lance": lance, "iceberg": iceberg}


def delete_before(kind: str, source: str, number: int) -> None:
    """Delete the rows before a number; their bytes stay in the table's files."""
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(source).delete(f"number < {number}")
    elif kind == "lance":
        import lance

        lance.dataset(source).delete(f"number < {number}")
    else:
        open_catalogue().load_table(source.removeprefix(f"iceberg:{CATALOGUE}.")).delete(f"number < {number}")


def open_catalogue() -> Any:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog import load_catalog

    return load_catalog(CATALOGUE)
