"""A method without a model, on a metric-local account: words of private text are swapped by coins."""

import random
import secrets
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.config import Config
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import AccountKind, PrivacyUnit, Protection
from rayprivacy.corpus.settings import WHOLE, CorpusConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.runs.assumptions import CLUSTER
from rayprivacy.runs.method import Card, Method, Output
from rayprivacy.runs.plan import Plan, Stage
from rayprivacy.runs.recipe import Recipe

STAGE, WORDS = "sanitised text", ("yes", "no", "maybe")


class SwapConfig(Config):
    epsilon: float = Field(default=0.5, gt=0)
    words: int = Field(default=4, ge=1)


class MetricPrivacy(PrivacyConfig):
    """The `privacy` block: epsilons of documents add up."""

    composition: Literal["metric"] = "metric"


class WordsCorpus(CorpusConfig):
    """The `corpus` block: no text is cut by characters, because the claim compares documents word for word."""

    max_chars: int = WHOLE


class SwapRecipe(Recipe):
    """A recipe of the swapper; it samples nothing, so it has no block `generation`."""

    method: Literal["toy_sanitised"] = "toy_sanitised"
    corpus: WordsCorpus = WordsCorpus()
    privacy: MetricPrivacy = MetricPrivacy(epsilon=8.0)
    swap: SwapConfig = SwapConfig()


def event_of(recipe: SwapRecipe) -> MetricLocalDpEvent:
    return MetricLocalDpEvent(recipe.swap.epsilon, 1.0, recipe.swap.words)


def plan(recipe: SwapRecipe) -> Plan:
    return Plan(
        stages=(Stage(STAGE, "private text", charges=(event_of(recipe),)),),
        protection=Protection(PrivacyUnit.RECORD, kind=AccountKind.METRIC_LOCAL),
        protects="words of text",
        noise=f"each word at epsilon {recipe.swap.epsilon:g}",
        assumptions=("A document has no more words than swap.words.", CLUSTER),
    )


def run(context: Any) -> Output:
    context.shard()

    def write(path: Path) -> None:
        from rayprivacy.corpus.manifest import read_part

        dice, rows = random.Random(secrets.randbits(128)), read_part(context.shards, 0)
        texts = [" ".join(dice.choice(WORDS) for _ in range(context.recipe.swap.words)) for _ in range(len(rows))]
        pq.write_table(pa.table({"text": texts}), path)

    with context.stage(STAGE):
        context.release_file(STAGE, event_of(context.recipe), METHOD.card.texts, write, question=digest_json(WORDS))
    return Output()


CARD = Card(
    citation="the swapper of the tests",
    sentence="every word was swapped by a coin.",
    private=(("corpus", "the raw text"), ("words", "swapped")),
    released=(("sanitised text", "word for word"), ("report", "this page")),
    text="Private text with other words. It was made by",
    texts="sanitized.parquet",
    has_model=False,
)
METHOD = Method(recipe=SwapRecipe, card=CARD, plan=plan, run=run, reading="toy_method:reading")
