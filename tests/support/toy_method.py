"""A method for tests: two charged stages, three chunks, a released histogram, eight texts, and no training.

It is registered by the one line of `toy_method-1.0.dist-info/entry_points.txt`, and nothing else knows it. Its first
stage releases how long texts are; its second releases the same with other noise, chunk by chunk, and each chunk makes
the base model that it releases a little sharper.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from rayprivacy.core.config import Config
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd.units import Reading
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.runs.assumptions import CLUSTER, DISCRETE_NOISE, OF_UNIT, TIMING
from rayprivacy.runs.method import BASE, Card, Method, Output
from rayprivacy.runs.plan import Plan, Stage, Work
from rayprivacy.runs.recipe import Recipe

LENGTHS, CHUNKS, TEXT = "lengths of texts", "chunks", "synthetic text"
BINS, WIDTH = 4, 4
QUESTION = digest_json(["how many texts have how many words", BINS, WIDTH])
WORDS = "the cat sat on my mat and you like soup".split()  # noqa: SIM905


class ToyConfig(Config):
    """The `toy` block: how much noise, how many chunks, and how sharp each chunk makes the model."""

    noise_multiplier: float = Field(default=8.0, gt=0)
    chunks: int = Field(default=3, ge=1)
    sharpness: float = Field(default=1.0, gt=0)


class ToyPrivacy(PrivacyConfig):
    composition: Literal["gdp", "zcdp", "rdp", "pld"] = "gdp"


class ToyRecipe(Recipe):
    method: Literal["toy"] = "toy"
    privacy: ToyPrivacy = ToyPrivacy()
    generation: SamplingConfig = SamplingConfig(texts=8)
    toy: ToyConfig = ToyConfig()


def mechanism_of(recipe: ToyRecipe) -> HistogramMechanism:
    return HistogramMechanism(cells=BINS, sigma=recipe.toy.noise_multiplier, unit=recipe.privacy.unit)


def plan(recipe: ToyRecipe) -> Plan:
    mechanism, chunks, private = mechanism_of(recipe), recipe.toy.chunks, "private text"
    charges, work = (mechanism.event,) * chunks, (Work("chunks_done", chunks),)
    return Plan(
        stages=(
            Stage(LENGTHS, private, f"{BINS} bins", (mechanism.event,)),
            Stage(CHUNKS, private, charges=charges, chunked=True, work=work),
            Stage(TEXT, "the released model", f"{recipe.generation.texts} texts"),
        ),
        protection=mechanism.protection,
        noise=f"noise multiplier {mechanism.sigma:g}",
        assumptions=(*OF_UNIT[recipe.privacy.unit], DISCRETE_NOISE["gaussian"], TIMING, CLUSTER),
        shards=3,
    )


def run(context: Any, mechanism: HistogramMechanism | None = None) -> Output | None:
    recipe, mechanism = context.recipe, mechanism or mechanism_of(context.recipe)
    context.shard()
    context.load_model()
    sums = length_sums(context.shards, context.plan.parts, mechanism)
    with context.stage(LENGTHS):
        shares = context.release_histogram(LENGTHS, mechanism, sums, question=QUESTION).value
    last, released = context.until or recipe.toy.chunks, []
    with context.stage(CHUNKS):
        for chunk in range(1, last + 1):
            released.append(context.release_histogram(CHUNKS, mechanism, sums, chunk, question=QUESTION).value)
            context.progress.show("chunks_done", chunk)
    context.run.private("notes").write_text("computed from private text")
    save_sharper(context, last * recipe.toy.sharpness)
    if context.stops_early:
        return None
    with context.stage(TEXT):
        table = pa.table({"text": texts_of([shares, *released], recipe.generation.texts)})
        pq.write_table(table, context.run.root / METHOD.card.texts)
    return Output(figures={"bins": BINS})


def length_sums(shards: Path, parts: int, mechanism: HistogramMechanism) -> Private[Any]:
    """Sums [BINS] of the users' shares of texts by their number of words."""
    from rayprivacy.corpus.manifest import read_part

    total = np.zeros(BINS, dtype=np.int64)
    for part in range(parts):
        counts: dict[str, Any] = {}
        for row in read_part(shards, part).to_pylist():
            own = counts.setdefault(str(row["user"]), np.zeros(BINS, dtype=np.int64))
            own[min(len(str(row["text"]).split()) // WIDTH, BINS - 1)] += 1
        total += mechanism.contribution(np.stack(list(counts.values()))) if counts else 0
    return Private(total)


def save_sharper(context: Any, sharpness: float) -> None:
    import torch

    from rayprivacy.models.save import save_model

    model = context.backbone.model
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1 + 0.1 * sharpness)
    save_model(model, context.backbone.tokenizer, context.run.root / "model", context.recipe.release_id, "A toy.")


def texts_of(released: list[Any], count: int) -> list[str]:
    """Texts that are as long as the released shares say, and that differ where these differ."""
    dice = np.random.default_rng([int(1e6 * share) for shares in released for share in shares])
    bins = dice.choice(BINS, size=count, p=np.mean(released, axis=0))
    return [" ".join(dice.choice(WORDS, size=4 * int(each) + 2)) for each in bins]


def reading(recipe: ToyRecipe) -> Reading:
    return Reading(PrivacyUnit.USER, (), nothing, 16)


def nothing(labels: Any) -> str:
    return ""


CARD = Card(
    citation="the toy of the tests",
    sentence="how long private texts are was counted with noise, and texts of public words are as long.",
    private=(("corpus", "the raw text"), ("users", "one id each"), ("lengths", "counted")),
    released=(("counts", "with noise"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE | {"toy": "Toy (this run)"},
    ours="toy",
)
METHOD = Method(recipe=ToyRecipe, card=CARD, plan=plan, run=run, reading=reading)
