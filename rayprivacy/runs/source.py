"""The corpus of a run that was handed over as a Ray Dataset: written once to the run's private side.

`corpus.source: dataset` stands for `private/source` of the run directory. The release id does not depend on what is in
it, as it does not for a path; the shards, and with them the input digest of every charge, depend on its content.
"""

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.core.files import private_directory, write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Seal
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_columns
from rayprivacy.runs.directory import R, Run

if TYPE_CHECKING:
    from ray.data import Dataset

DATASET = "dataset"
_FOLDER, _STAMP = "source", ".stamp"
_ROWS = 65_536  # of one file
_SEAL = Seal(CorpusError, "report it, with the schema of the dataset")  # errors may quote rows


def corpus_of(run: Run[R]) -> CorpusConfig:
    """The corpus of a run, with the place where its rows are; ConfigError for a dataset that was not handed over."""
    corpus = run.recipe.sharded_corpus
    if corpus.source != DATASET:
        return corpus
    folder = run.private(_FOLDER)
    if not folder.is_dir():
        raise ConfigError(
            "corpus.source is 'dataset' and no dataset was given: call rayprivacy.run(recipe, dataset=...), or name a"
            " .parquet, .jsonl or .csv file."
        )
    return corpus.model_copy(update={"source": str(folder)})


@_SEAL.around("writing the dataset")
def write_dataset(run: Run[R], dataset: "Dataset", key: Key) -> None:
    """Write a dataset to the private side of a run, or find it there.

    Only the columns of the recipe are read and kept. Rows are named by a keyed digest that does not depend on their
    order, which Ray does not keep. A dataset with other rows replaces the one that is there: it is another corpus, as a
    changed file is.
    """
    corpus, folder = run.recipe.corpus, run.private(_FOLDER)
    if corpus.source != DATASET:
        raise ConfigError(
            f"a dataset was given, and corpus.source is '{corpus.source}': set corpus.source to '{DATASET}'."
        )
    schema = dataset.schema()
    check_columns(corpus, list(schema.names) if schema else [], "parquet")
    scratch = run.private(f".{_FOLDER}")
    shutil.rmtree(scratch, ignore_errors=True)
    private_directory(scratch)
    digest = 0
    batches: Any = dataset.iter_batches(batch_size=_ROWS, batch_format="pyarrow")  # Ray's types do not know the format
    for number, batch in enumerate(batches):
        rows = batch.select(corpus.columns)
        pq.write_table(rows, scratch / f"{number:06d}.parquet", compression="zstd")
        named = (key.digest("dataset-row", *(repr(value) for value in row.values())) for row in rows.to_pylist())
        digest += sum(int(name, 16) for name in named)
    stamp = f"{digest % 2**256:064x}\n"
    if not ((folder / _STAMP).exists() and (folder / _STAMP).read_text() == stamp):
        write_atomic(scratch / _STAMP, stamp.encode())
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    shutil.rmtree(scratch, ignore_errors=True)
