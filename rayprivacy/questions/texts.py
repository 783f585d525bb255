"""The texts that are asked about, as one Parquet file: a row group holds whole documents, a few at a time.

A row group is what an actor takes at once. What comes of it depends on nothing else but settings and the public seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.files import write_atomic
from rayprivacy.questions.clozes import Document
from rayprivacy.questions.settings import PassagesConfig

ROWS = 64  # of a row group, about


@dataclass(frozen=True)
class Texts:
    """A file of texts, and how they are cut into passages."""

    path: Path
    cut: PassagesConfig

    @property
    def groups(self) -> int:
        """How many row groups it has."""
        return int(pq.read_metadata(self.path).num_row_groups)

    def documents(self, group: int) -> Iterator[Document]:
        """The documents of a row group."""
        rows = pq.ParquetFile(self.path).read_row_group(group)
        numbers = rows["document"].to_pylist()
        for number in dict.fromkeys(numbers):
            own = rows.slice(numbers.index(number), numbers.count(number))
            title, texts = own["title"][0].as_py(), own["text"].to_pylist()
            yield Document(number, title, texts, own["row"].to_pylist(), self.cut)


def write_texts(table: pa.Table, path: Path) -> None:
    """Write texts, those of a document together, but for empty ones.

    The second column, if there is one, names the document of a text. A text without one is its own document.
    """
    kept = table.filter(pc.is_valid(table["text"]))
    titles = kept.column(1).to_pylist() if kept.num_columns > 1 else [None] * len(kept)
    known: dict[str | int, int] = {}
    documents = [known.setdefault(row if title is None else title, len(known)) for row, title in enumerate(titles)]
    order = sorted(range(len(kept)), key=documents.__getitem__)
    columns = {
        "document": pa.array([documents[row] for row in order], pa.int64()),
        "row": pa.array(order, pa.int64()),
        "title": pa.array([titles[row] or "" for row in order], pa.string()),
        "text": kept["text"].take(pa.array(order, pa.int64())),
    }
    found, sink = pa.table(columns), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, found.schema, compression="zstd") as writer:
        for start, end in _groups(columns["document"].to_pylist()):
            writer.write_table(found.slice(start, end - start))
    write_atomic(path, sink.getvalue().to_pybytes())


def _groups(documents: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches of whole documents, of at least `ROWS` rows each but for the last."""
    start = 0
    for end in range(1, len(documents) + 1):
        if end == len(documents) or (end - start >= ROWS and documents[end] != documents[end - 1]):
            yield start, end
            start = end
