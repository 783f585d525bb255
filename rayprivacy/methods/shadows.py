"""Train shadow models of a run: its recipe again, on halves of its users, with a key and a ledger of their own.

They are made of private text, are never released, and lie in `private/shadows`, which `rayprivacy clean` deletes, in a
folder of their corpus: those of a corpus that has changed since are not taken for these. Their ledger is a file beside
them: what they charge is nobody's release. A killed audit goes on where it stopped.
"""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from rayprivacy.audit.population import Population
from rayprivacy.audit.shadows import Shadow
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import private_directory
from rayprivacy.core.sealing import Seal
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.methods.catalogue import method_of
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.recipes import parse_recipe
from rayprivacy.methods.run import Run

FOLDER = "shadows"
_SEAL = Seal(RayPrivacyError, "report it, with the sizes of the corpus and the settings")  # errors may quote rows


@_SEAL.around("training shadow models")
def train_shadows(root: Path, recipe: Recipe, population: Population, count: int, console: Console) -> list[Shadow]:
    """Train, or find trained, so many shadow models.

    Args:
        root: the audited run.
        recipe: its recipe.
        population: its users, without canaries.
        count: an even number, at least 4.
        console: where progress is shown.
    """
    corpus = read_manifest(population.shards).corpus_digest(population.key)[:16]
    place = root.absolute() / "private" / FOLDER / corpus
    return [_trained(place / f"{number:03d}", recipe, population, number, console) for number in range(count)]


def _trained(folder: Path, recipe: Recipe, population: Population, number: int, console: Console) -> Shadow:
    shadow = Shadow(number, folder / "run" / "model", population.key)
    if not (folder / "run" / "certificate.json").exists():
        console.print(f"shadow model {number + 1}", highlight=False)
        private_directory(folder)
        _write_corpus(folder / "corpus.parquet", population, shadow)
        again = _shadow_recipe(recipe, folder)
        run = Run.open(folder / "run", again, resume=True, console=console)
        method_of(again).run(replace(run, measured=False))
    return shadow


def _shadow_recipe(recipe: Recipe, folder: Path) -> Recipe:
    data = recipe.model_dump(mode="json", exclude={"audit"})
    data["corpus"] |= {"source": str(folder / "corpus.parquet"), "user": "user", "text": "text", "holdout": 0.0}
    data["privacy"] |= {
        "ledger": f"sqlite:///{folder}/ledger.db", "key": str(folder / "key"), "ledger_key": None, "corpus": "",
        "account": FOLDER,
    }  # fmt: skip
    data["generation"]["texts"] = 1  # the model is what is attacked
    if "teachers" in data:
        data["teachers"]["features"] = None  # of other users: not to be kept with the run's own
    return parse_recipe(data)


def _write_corpus(path: Path, population: Population, shadow: Shadow) -> None:
    scratch, writer = path.with_suffix(".tmp"), None
    for rows in population.everybody():
        kept = rows.filter(pa.array([shadow.holds(user) for user in rows["user"].to_pylist()], pa.bool_()))
        writer = writer or pq.ParquetWriter(scratch, kept.schema, compression="zstd")
        writer.write_table(kept)
    assert writer is not None, "everybody() begins with the held-out users"
    writer.close()
    scratch.chmod(0o600)
    scratch.replace(path)
