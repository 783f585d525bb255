"""The algorithm of SanText and SanText+ (Yue et al., 2021, "Differential Privacy for Text Analytics via Natural Text
Sanitization", algorithms 1 and 2).

    public words, vectors -> table: the law of every word, and the exact bound of a token     (public)
    account: one charge for all words of a user                                               RELEASE GATE
    texts -> typed values made up anew -> words -> keyed draws from the table -> one file     (released)

Nothing is trained and nothing is learnt from the corpus. Everything that is made of the file is post-processing.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.dpsgd.units import Reading
from rayprivacy.methods.santext.card import CARD
from rayprivacy.methods.santext.heldout import attack_table, attacks, charts, sample_pairs
from rayprivacy.methods.santext.mechanisms import Planned, confirmed, planned
from rayprivacy.methods.santext.plan import PARTS_SANITISED, WORDS
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.runs.account import whole
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.exhibits import Chart, Table
from rayprivacy.runs.method import Output
from rayprivacy.sanitize.entities import detector_of
from rayprivacy.sanitize.job import Job, sanitise_parts, write_release
from rayprivacy.sanitize.labels import Labels

Context = RunContext[SanTextRecipe]


def run(context: Context) -> Output:
    """Run, or finish, a recipe."""
    found = confirmed(planned(context.recipe))
    context.run.bind(vocabulary=found.vocabulary.digest)
    context.shard()
    event = whole(context.plan.stage(WORDS).charges)
    made_of = _made_of(context.recipe, found)
    job = _job(context, found, context.file_inputs(WORDS, event, made_of))
    parts = context.plan.parts

    def write(path: Path) -> None:
        for _ in context.track(sanitise_parts(job, parts), PARTS_SANITISED):
            pass
        write_release(job, parts, path)

    with context.stage(WORDS):
        context.release_file(WORDS, event, CARD.texts, write, made_of)
    measured = _Measured(context, job, found)
    return Output(figures={"words_kept": found.keep}, internal=measured.blocks, exhibits=measured.exhibits)


def _made_of(recipe: SanTextRecipe, found: Planned) -> str:
    """Digest of what the file is made of beside corpus and recipe."""
    return digest_json([found.vocabulary.digest, detector_of(recipe.sanitize.detector, recipe.sanitize.entities).name])


def _job(context: Context, found: Planned, inputs: str) -> Job:
    recipe = context.recipe
    return Job(
        config=recipe.sanitize,
        words=found.vocabulary.words,
        mechanism=found.mechanism,
        labels=Labels(recipe.sanitize.labels, recipe.corpus.labels),
        unit=recipe.privacy.unit,
        shards=context.shards,
        key_path=context.key_path,
        release=(recipe.privacy.account, recipe.release_id, inputs),
        folder=context.run.private("sanitised") / inputs[:16],
    )


@dataclass(frozen=True, eq=False)
class _Measured:
    """What is measured of a finished run beside private text."""

    context: Context
    job: Job
    found: Planned

    def blocks(self) -> dict[str, Any]:
        """The block `inference` of metrics.json, where attacks are asked for."""
        return {"inference": self._attacks} if self._words else {}

    def exhibits(self) -> list[Chart | Table]:
        """Charts and tables for the report."""
        attacked = [attack_table(self._attacks)] if self._words else []
        return [*charts(self.found), *attacked, sample_pairs(self.job, self.context.key)]

    @property
    def _words(self) -> int:
        return self.context.recipe.evaluation.attacked

    @cached_property
    def _attacks(self) -> dict[str, Any]:
        backbone = load_backbone(self.context.recipe.model)
        return attacks(self.job, self.context.plan.parts, self.found, backbone, self.context.key, self._words)


def reading_of(recipe: SanTextRecipe) -> Reading:
    """How a run reads a row: its text, with nothing in front."""
    return Reading(recipe.privacy.unit, (), _nothing, recipe.sanitize.max_tokens)


def _nothing(row: Any) -> str:
    return ""
