"""The audit of a finished run: its models, as they read a row, are attacked, with shadow models where they are wanted.

A shadow model is the run's recipe trained again on a half of its users, with a key and a ledger of its own: what it
charges is nobody's release. Shadow models are made of private text, are never released, and lie in `private/shadows`,
which `rayprivacy clean` deletes, in a folder of their corpus: those of a corpus that has changed since are not taken
for these. A killed audit goes on where it stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from rayprivacy.auditing.directory import RunAudit, audit_run
from rayprivacy.auditing.population import Population
from rayprivacy.auditing.scoring import Array, Scored, ScoredModel, Shadow
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import Json, private_directory
from rayprivacy.core.keys import load_key
from rayprivacy.core.private import Seal
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.dpsgd.units import Reading, Row, documents_of
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.directory import CERTIFICATE, MODEL, note_private
from rayprivacy.runs.drive import drive
from rayprivacy.runs.method import Method
from rayprivacy.runs.recipe import Recipe, elsewhere
from rayprivacy.tagging.loss import losses, sorted_scores
from rayprivacy.tagging.settings import TaggerConfig, Tags

FOLDER = "shadows"
_UNORDERED = "place among turns"  # a column of nothing, read where the recipe joins turns
_SEAL = Seal(RayPrivacyError, "report it, with the sizes of the corpus and the settings")  # errors may quote rows


@dataclass(frozen=True)
class ScoredTagger:
    """A released tagger, and how it read a row (see `auditing.scoring.ScoredModel`)."""

    tags: Tags
    reading: Reading = field(repr=False)
    folder: str = MODEL  # in the run directory

    def totals(self, backbone: Backbone, rows: Sequence[Row]) -> tuple[Array, Array]:
        """The loss of each row in nats, which is one figure and not a sum over tokens."""
        found = losses(backbone.model, self.tags, documents_of(rows, backbone, self.reading))
        return found, np.ones(len(found))

    def certainty(self, backbone: Backbone, rows: Sequence[Row]) -> Array:
        """Its highest scores of intents and of words, sorted (Shokri et al., 2017)."""
        return sorted_scores(backbone.model, self.tags, documents_of(rows, backbone, self.reading))


def attacked_models(method: Method, recipe: Recipe) -> Sequence[ScoredModel]:
    """The models of a run of a recipe, language models or a tagger."""
    if isinstance(recipe.model, TaggerConfig):
        return [ScoredTagger(recipe.model.tags, method.reads(recipe))]
    return scored_models(method, recipe)


def scored_models(method: Method, recipe: Recipe) -> list[Scored]:
    """The language models of a run of a recipe; first the one that writes its text."""
    readings = {MODEL: method.reads(recipe), **method.reads_beside(recipe)}
    return [
        Scored(folder, each.context, partial(_text, each), each.max_tokens, each.max_context)
        for folder, each in readings.items()
    ]


def _text(reading: Reading, row: Row) -> str:
    return reading.text(row, reading.versions - 1)


@_SEAL.around("training shadow models")
def train_shadows(
    method: Method, root: Path, recipe: Recipe, population: Population, count: int, console: Console
) -> list[Shadow]:
    """Train, or find, an even number of shadow models, at least 4, on users of the audited run without canaries."""
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
    columns: Json = {"source": str(folder / "corpus.parquet"), "user": "user", "text": "text", "holdout": 0.0}
    join = recipe.corpus.join
    if join is not None:  # its rows are documents already: none has a place among turns
        columns["join"] = join.model_copy(update={"by": "user", "order": _UNORDERED})
    corpus = recipe.corpus.model_copy(update=columns)
    own = {"ledger": folder / "ledger.db", "key": folder / "key"}
    data = elsewhere(recipe.model_dump(mode="json"), type(recipe), corpus, **own, account=FOLDER)
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


def audit_finished(method: Method, recipe: Recipe, root: Path, *, users: int, shadows: int, console: Console) -> Json:
    """Attack a finished run, at most `users` of each side, write `audit.json` into it, and return what that says."""
    if not method.card.has_model:
        raise ConfigError(f"method '{recipe.method}' releases no model, so it has no losses to attack.")
    if (root / CERTIFICATE).exists():  # of a run that is not finished the audit itself says so
        recipe = recipe.on_its_base(root)
    models, key = attacked_models(method, recipe), load_key(Path(recipe.privacy.key))
    audit = RunAudit(root, recipe.model, recipe.privacy.unit, models, key, users, texts=method.card.texts)
    if shadows:
        audit.check()
        audit = replace(audit, shadows=train_shadows(method, root, recipe, audit.population(), shadows, console))
    return audit_run(audit, lambda what: console.print(f"audit: {what}", highlight=False))
