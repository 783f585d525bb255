"""The comparison of a run's released with its private text, as `rayprivacy evaluate` makes it of files.

    private shards    -> at most `evaluation.compare` training texts -+
    held-out users    -> as many of their texts at most --------------+-> evaluation.json, evaluation.md (internal)
    released text     -> as many texts at most -----------------------+

It is the last stage. Problems visible from public settings (a missing package, too few texts requested) are refused
before anything is charged. The number of private texts is itself private, so if there are too few, the stage is skipped
and the run still succeeds.

The figures read private text without noise: no certificate covers them, they go into these two files (mode 0600) and
into the internal report alone, and a search writes none. Which texts are drawn depends on a public seed and on how many
there are; files are read batch by batch, so that memory holds the drawn texts and not the corpus.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import CorpusError, RayPrivacyError
from rayprivacy.core.files import Json
from rayprivacy.core.private import Seal
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import part_paths, read_manifest
from rayprivacy.evaluation.figures import delete_evaluation, write_evaluation
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import LEAST_TEXTS, Indexes, Texts, sample, texts_of
from rayprivacy.generation.codes import Codes
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.directory import R, Run
from rayprivacy.runs.method import Card
from rayprivacy.runs.plan import COMPARISON, GROUPS, GROUPS_MEASURED

SKIPPED = "left out: too few texts"
NO_CLASSIFIER = "the labels have nothing to learn on one side, so there is no classifier"
BATCH_ROWS = 8192  # in memory at a time
_SEED = 0
_SEAL = Seal(RayPrivacyError, "everything else of the run is there; report it, with the sizes and the settings")


def drawn_rows(files: Sequence[Path], most: int, columns: list[str]) -> pa.Table:
    """Some rows of all files together, in their order: all where there are no more than `most`."""
    sizes = [pq.read_metadata(path).num_rows for path in files]
    places, first = sample(sum(sizes), most, _SEED), 0
    found = [pq.read_schema(files[0]).remove_metadata().empty_table().select(columns)]
    for path, size in zip(files, sizes, strict=True):
        found += rows_at(path, _within(places, first, size), columns)
        first += size
    return pa.concat_tables(found)


def rows_at(path: Path, places: Indexes, columns: list[str]) -> Iterator[pa.Table]:
    """The rows at these places of a file, ascending, in one table for each batch of it."""
    if not len(places):
        return
    first = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            rows = pa.Table.from_batches([batch]).select(columns)
            yield rows.take(pa.array(_within(places, first, len(rows))))
            first += len(rows)


def _within(places: Indexes, first: int, size: int) -> Indexes:
    return np.asarray(places[(places >= first) & (places < first + size)] - first)


def compare_with_private(run: Run[R], card: Card, backbone: Backbone | None, codes: Codes | None = None) -> None:
    """Write `evaluation.json` and `evaluation.md` into a run whose released text is there.

    Does nothing where `evaluation.compare` is 0. Killed, it is repeated. Without a backbone the perplexity of the texts
    is left out; with codes a classifier learns their first label.
    """
    if not run.recipe.evaluation.compare:
        return
    with run.stage(COMPARISON):
        found = _compared(run, run.root / card.texts, backbone, codes)
        if found is None:
            run.log(COMPARISON, SKIPPED)
            delete_evaluation(run.root)  # of the corpus as it was when the run was killed
        else:
            write_evaluation(run.root, found)


@_SEAL.around("the comparison with private text")
def _compared(run: Run[R], texts: Path, backbone: Backbone | None, codes: Codes | None) -> Json | None:
    """The figures; None where training texts or synthetic texts are too few."""
    from rayprivacy.evaluation.evaluate import evaluate  # of the extra `eval`, which other runs do without

    most, shards = run.recipe.evaluation.compare, run.private("shards")
    parts = [path for part in range(len(read_manifest(shards).parts)) for path in part_paths(shards, part)]
    label = codes.columns[0] if codes and codes.columns else None
    private = {"text": "text", "user": "user"} | ({"label": label} if label else {})
    public = {name: column for name, column in private.items() if name != "user"}
    real = _texts(parts, most, private, codes)
    heldout = _texts(part_paths(shards, HOLDOUT), most, private, codes)
    synthetic = _texts([texts], most, public, codes)
    if min(len(real), len(synthetic)) < LEAST_TEXTS:
        return None
    control = heldout if len(heldout) >= LEAST_TEXTS else None
    opened = {run.recipe.model.base: backbone} if backbone else {}
    given = {"label": label, "base": next(iter(opened), None), "max_texts": most, "seed": _SEED}
    config, report = EvaluationConfig.parse(given), _counter(run)
    try:
        return evaluate(real, synthetic, control, config, report, opened)
    except CorpusError:
        plain = config.model_copy(update={"label": None})
        found = evaluate(real, synthetic, control, plain, report, opened)
        return found | {"notes": [*found["notes"], NO_CLASSIFIER]}


def _counter(run: Run[R]) -> Callable[[str], None]:
    """Counts the groups of figures as they begin; each once, whether the labels could be used or not."""
    begun: set[str] = set()

    def report(group: str) -> None:
        begun.add(group)
        run.meter.count(GROUPS_MEASURED, min(len(begun), GROUPS) - 1, GROUPS)

    return report


def _texts(files: Sequence[Path], most: int, columns: Mapping[str, str], codes: Codes | None) -> Texts:
    """At most `most` texts of some files together, each treated as `rayprivacy evaluate` does."""
    rows = drawn_rows(files, most, list(columns.values()))
    label = columns.get("label")
    if codes is not None and label is not None:  # a value that is on no public list is `other`, as it was in training
        values = [codes.labels(codes.index({label: value}))[label] for value in rows[label].to_pylist()]
        rows = rows.set_column(rows.column_names.index(label), label, pa.array(values, pa.string()))
    return texts_of(rows, columns)
