"""The algorithm of SanText and SanText+ (Yue et al., 2021, "Differential Privacy for Text Analytics via Natural Text
Sanitization", algorithms 1 and 2).

    public words, vectors -> table: the law of every word, and the exact bound of a token     (public)
    account: one charge for all words of a user                                               RELEASE GATE
    texts -> typed values made up anew -> words -> keyed draws from the table -> one file     (released)

Nothing is trained and nothing is learnt from the corpus. Everything that is made of the file is post-processing.
"""

from pathlib import Path
from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.dpsgd.units import Reading
from rayprivacy.methods.santext.card import CARD
from rayprivacy.methods.santext.mechanisms import Planned, confirmed, planned
from rayprivacy.methods.santext.plan import PARTS_SANITISED, WORDS
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.runs.account import whole
from rayprivacy.runs.context import RunContext
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
    with context.stage(WORDS):
        _release(context, found)
    return Output(figures={"words_kept": found.keep})


def _release(context: Context, found: Planned) -> Path:
    recipe, event = context.recipe, whole(context.plan.stage(WORDS).charges)
    detector = detector_of(recipe.sanitize.detector, recipe.sanitize.entities)
    made_of = digest_json([found.vocabulary.digest, detector.name])
    inputs = context.file_inputs(WORDS, event, made_of)
    job = Job(
        config=recipe.sanitize,
        words=found.vocabulary.words,
        mechanism=found.mechanism,
        labels=Labels(recipe.sanitize.labels, recipe.corpus.labels),
        shards=context.shards,
        key_path=context.key_path,
        release=(recipe.privacy.account, inputs),
        folder=context.run.private("sanitised") / inputs[:16],
    )

    def write(path: Path) -> None:
        for _ in context.track(sanitise_parts(job, context.plan.parts), PARTS_SANITISED):
            pass
        write_release(job, context.plan.parts, path)

    return context.release_file(WORDS, event, CARD.texts, write, made_of)


def reading_of(recipe: SanTextRecipe) -> Reading:
    """How a run reads a row: its text, with nothing in front."""
    return Reading(recipe.privacy.unit, (), _nothing, recipe.sanitize.max_tokens)


def _nothing(row: Any) -> str:
    return ""
