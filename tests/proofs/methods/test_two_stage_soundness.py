"""The guarantee of two-stage generation on its own path: rows, readings, clipping and streams of both stages."""

from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from planned import mechanisms
from rich.console import Console
from scipy import stats
from small_trees import pairs, small_recipe, write_corpus

from rayprivacy.blocks import steps as training
from rayprivacy.blocks.steps import Training
from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import FileEntry, ShardManifest, write_part
from rayprivacy.corpus.users import Dropped
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.units import read_units
from rayprivacy.methods.registry import method_of
from rayprivacy.methods.two_stage.plan import PARSES, UTTERANCES
from rayprivacy.methods.two_stage.readings import RELEASED_TREE, parses_of, utterances_of
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.runs.account import open_account
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.progress import ProgressGauges

KEY = Key.for_tests()
STAGES = ("trees", "utterances")
NORM, COORDINATES = 0.5, 100_000
ENTRY = FileEntry(0, "part.parquet", 1, 1, "0" * 64, "0" * 64)
CORPUS = ShardManifest("", 1, 1, 1, 0.0, (ENTRY,), ENTRY, Dropped(0, 0, 0, 0, 0))
UNKNOWN = "~"  # a token of nobody else: the losses of its row are no numbers
LONG = "meet me (" * 11_112
ADVERSARIES = {
    "a long tree": ("yes please", LONG),
    "a long text": (LONG, "(Confirm)"),
    "neither": ("", ""),
    "no tree": ("yes please", None),
    "no number": (f"yes {UNKNOWN}", f'(Yield (?= "{UNKNOWN}"))'),
    "what another one wrote": pairs(3, 1)[0],
    "no brackets": (")) ((", ")))((("),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_base):
    """Equal steps, rates and noise in both stages: nothing but their names tells them apart."""
    folder = tmp_path_factory.mktemp("two_stage")
    write_corpus(folder, users=2)
    stages = {"trees": {"steps": 4}, "utterances": {"steps": 4}}
    return TwoStageRecipe.parse(small_recipe(folder, tiny_base) | {"stages": stages})


def _streams(recipe):
    """The names of both streams, as a run makes them."""
    plan = method_of(recipe).planned(recipe)
    run = Run.open(Path(recipe.corpus.source).parent / "run", recipe, resume=True, console=Console(quiet=True))
    with closing(open_account(recipe, plan)) as ledger:
        context = RunContext(run, plan, lambda: ledger, KEY, ProgressGauges(recipe.release_id, {}, shown=False))
        context.corpus = CORPUS
        context.load_model()
        trained = Training(parses_of(recipe), recipe.adapter, recipe.training_of("trees"), recipe.resources)
        return [training._named(context, name, trained).stream for name in (PARSES, UTTERANCES)]


def test_the_stages_share_neither_coins_nor_noise(recipe):
    found, streams = mechanisms(recipe), _streams(recipe)
    assert found[PARSES] == found[UTTERANCES]
    first, second = (KeyedNoise(KEY, stream).normal(0, "weight", 0, COORDINATES).numpy() for stream in streams)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(COORDINATES)
    users, rate = 2000, found[PARSES].sampling_rate
    coins = np.array([_coins(stream, rate, users) for stream in streams])
    for own in coins:
        assert stats.binomtest(int(own.sum()), users, rate).pvalue > 1e-4
    agree = int((coins[0] == coins[1]).sum())
    assert stats.binomtest(agree, users, rate**2 + (1 - rate) ** 2).pvalue > 1e-4


def _coins(stream, rate, users):
    units = [Unit(unit_tag(KEY, "user", user), (Document(np.array([0, user], np.int32), 1),)) for user in range(users)]
    taking = {int(documents[0].ids[1]) for documents in PoissonSampler(KEY, stream, rate, units, 1).sample(0)}
    return np.isin(np.arange(users), list(taking))


@pytest.mark.parametrize("stage", STAGES)
def test_one_more_user_moves_the_sum_by_at_most_the_norm(recipe, tiny_backbone, tmp_path, stage):
    """Whatever the tree and the text of the user are, and however long: noise off, everything else as in a run."""
    total = _summed(recipe, tiny_backbone, stage, tmp_path)
    others = [("bob", *pairs(4, 2)[0]), ("cat", *pairs(4, 2)[1])]
    without = total(others)
    assert without.isfinite().all()
    moves = {name: (total([*others, ("ann", *row)]) - without).norm().item() for name, row in ADVERSARIES.items()}
    assert max(moves.values()) <= NORM * (1 + 1e-6)  # NaN would fail here
    assert max(moves.values()) >= 0.9 * NORM
    assert moves["no number"] == 0


KINDS = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
KINDS["lispress"] = pa.string()
Row = tuple[str, str, str | None]  # user, text and tree


def _summed(recipe, backbone, stage, folder):
    """The clipped sum of a step that everybody takes part in, from rows."""
    model, (never,) = trainable(backbone, AdapterConfig(rank=4)), backbone.tokenizer.encode(UNKNOWN)
    clipped = BookKeeping(model, Clipping(NORM, "flat", False))
    reading = parses_of(recipe) if stage == "trees" else utterances_of(recipe)

    def losses(batch):
        broken = (batch.ids == never).any(1)
        return row_losses(model, batch) * torch.where(broken, torch.nan, 1.0)

    def total(rows):
        made = [dict(zip(KINDS, (0, user, 0, text, tree), strict=True)) for user, text, tree in sorted(rows)]
        write_part(pa.Table.from_pylist(made, schema=pa.schema(KINDS)), 0, KEY, folder)
        units = read_units(folder, [0], backbone, KEY, reading)
        assert all(len(document.ids) < 100 for unit in units for document in unit.documents_in(0))
        summed = torch.zeros(())
        for batch in physical_batches([unit.documents_in(0) for unit in units], 256, backbone.end):
            lazy = clipped(partial(losses, batch), batch.rows_per_unit)
            summed = summed + torch.cat([value().double().flatten() for value in lazy.values()])
        return summed

    return total


def test_a_released_row_is_read_behind_its_tree_whatever_the_corpus_calls_it(recipe):
    """Bounds of released figures lie around what the model loses on its own text, read as private text is."""
    reading = utterances_of(recipe)
    private = {"text": "yes please", recipe.parses.column: "(Confirm)"}
    released = {"text": "yes please", RELEASED_TREE: "(Confirm)", "functions": "Confirm"}
    assert recipe.parses.column != RELEASED_TREE
    assert reading.context(released) == reading.context(private)
    assert reading.context(private | {recipe.parses.column: None, RELEASED_TREE: "(Confirm)"}) == reading.context({})
