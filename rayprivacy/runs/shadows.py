"""Shadow models of a run: its recipe trained again, on halves of its users, with a key and a ledger of their own.

They are made of private text, are never released, and lie in `private/shadows`, which `rayprivacy clean` deletes, in a
folder of their corpus: those of a corpus that has changed since are not taken for these. Their ledger is a file beside
them: what they charge is nobody's release. A killed audit goes on where it stopped.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from rayprivacy.auditing.population import Population
from rayprivacy.auditing.shadows import Shadow
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import private_directory
from rayprivacy.core.sealing import Seal
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.runs.directory import CERTIFICATE, note_private
from rayprivacy.runs.drive import drive
from rayprivacy.runs.elsewhere import elsewhere
from rayprivacy.runs.method import Method
from rayprivacy.runs.recipe import Recipe

FOLDER = "shadows"
_UNORDERED = "place among turns"  # a column of nothing, read where the recipe joins turns
_SEAL = Seal(RayPrivacyError, "report it, with the sizes of the corpus and the settings")  # errors may quote rows


@_SEAL.around("training shadow models")
def train_shadows(
    method: Method, root: Path, recipe: Recipe, population: Population, count: int, console: Console
) -> list[Shadow]:
    """Train, or find trained, some shadow models.

    `count` is an even number, at least 4; `population` are the users of the audited run, without canaries.
    """
    corpus = read_manifest(population.shards).corpus_digest(population.key)[:16]
    place = note_private(root.absolute(), FOLDER) / corpus
    return [_trained(method, place / f"{number:03d}", recipe, population, number, console) for number in range(count)]


def _trained(
    method: Method, folder: Path, recipe: Recipe, population: Population, number: int, console: Console
) -> Shadow:
    shadow = Shadow(number, folder / "run", population.key)
    if not (folder / "run" / CERTIFICATE).exists():
        console.print(f"shadow model {number + 1}", highlight=False)
        private_directory(folder)
        _write_corpus(folder / "corpus.parquet", population, shadow)
        theirs = shadow_recipe(recipe, folder)
        drive(method, theirs, folder / "run", console=console, measured=False, announce=False)
    return shadow


def shadow_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of a shadow model: the same on another corpus, and as little text as possible."""
    columns: dict[str, Any] = {"source": str(folder / "corpus.parquet"), "user": "user", "text": "text", "holdout": 0.0}
    join = recipe.corpus.join
    if join is not None:  # its rows are documents already: none has a place among turns
        columns["join"] = join.model_copy(update={"by": "user", "order": _UNORDERED})
    data = elsewhere(
        recipe.model_dump(mode="json"),
        type(recipe),
        recipe.corpus.model_copy(update=columns),
        ledger=folder / "ledger.db",
        key=folder / "key",
        account=FOLDER,
    )
    if recipe.generation is not None:
        data["generation"] = {**data["generation"], "texts": 1}  # the model is what is attacked
    return type(recipe).parse(data)


def _write_corpus(path: Path, population: Population, shadow: Shadow) -> None:
    scratch, writer = path.with_suffix(".tmp"), None
    for rows in population.everybody():
        kept = rows.filter(pa.array([shadow.holds(user) for user in rows["user"].to_pylist()], pa.bool_()))
        kept = kept.append_column(_UNORDERED, pa.nulls(len(kept), pa.string()))
        writer = writer or pq.ParquetWriter(scratch, kept.schema, compression="zstd")
        writer.write_table(kept)
    assert writer is not None, "everybody() begins with the held-out users"
    writer.close()
    scratch.chmod(0o600)
    scratch.replace(path)
