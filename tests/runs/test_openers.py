"""Texts with released words that candidates lack: as many as the votes say, behind openers, without the codes."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recipes import TRAINING
from rich.console import Console
from small_jobs import small_privacy, write_profile

from rayprivacy.blocks import openers
from rayprivacy.core.keys import load_key
from rayprivacy.generation.codes import Codes
from rayprivacy.generation.writing import METADATA
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run

WORDS = ("soup", "cat")
TOPICS = {"topic": ["food", "pets"]}
TEXTS = ["we eat bread. It is good", "my dog sleeps", "we eat", "bread and cheese, says the man in the shop"]


@pytest.fixture
def context(tmp_path, tiny_base):
    """A run of the generator whose model is there, and its candidates, with topics."""
    match = {"words": write_profile(tmp_path / "profile.json", *WORDS)}
    corpus = {"corpus": {"user": "who", "labels": ["topic"]}, "codes": {"values": TOPICS}}
    blocks = corpus | {"match": match, "training": TRAINING}
    writing = {"generation": {"texts": 4, "max_tokens": 6, "engine": "transformers"}}
    model = {"model": {"base": str(tiny_base), "dtype": "float32"}, "privacy": small_privacy(tmp_path)}
    recipe = parse_recipe({"method": "generator", **blocks, **writing, **model, "resources": {"actors": 1}})
    run = Run.open(tmp_path / "out", recipe, resume=False, console=Console(quiet=True))
    shutil.copytree(tiny_base, run.root / "model")
    counts: Any = SimpleNamespace(show=lambda *_: None, expect=lambda *_: None)
    no_ledger: Any = None
    key = load_key(Path(recipe.privacy.key))
    made = RunContext(run, method_of(recipe).planned(recipe), no_ledger, key, counts)
    candidates = pa.table({"text": TEXTS, "topic": ["food", "pets", "food", "other"]})
    told = {METADATA: json.dumps({"texts": 4, "degenerate": {}, "source": "a model"})}
    pq.write_table(candidates.replace_schema_metadata(told), run.public("candidates.parquet"))
    return made


def test_each_word_is_written_as_often_as_it_lacks_and_codes_stay_outside(context, local_ray, monkeypatch):
    codes, path = Codes(context.recipe.codes, ("topic",)), context.run.public("candidates.parquet")
    asked, real = list[Any](), openers.writing.written_once
    monkeypatch.setattr(openers.writing, "written_once", lambda *a, **k: asked.append(a[2]) or real(*a, **k))
    found = openers.opened(context, path, WORDS, np.array([3, 2]), codes)
    (kept,) = context.run.root.glob("public/openers-*.json")
    begun = json.loads(kept.read_text())
    assert asked == [[(cell, codes.text(cell) + opener) for cell, opener in begun]], "as the model was trained"
    assert found.column_names == ["text", "topic"]
    assert 1 <= len(found) <= 5
    assert [opener.split()[-1] for _, opener in begun] == ["soup"] * 3 + ["cat"] * 2
    told = {(codes.labels(cell)["topic"], opener) for cell, opener in begun}
    for row in found.to_pylist():
        assert any(topic == row["topic"] and row["text"].startswith(opener) for topic, opener in told), row
    assert {(topic, opener.rsplit(" ", 1)[0]) for topic, opener in told} <= {
        (topic, " ".join(text.split()[:length]))
        for topic, text in zip(["food", "pets", "food", "other"], TEXTS, strict=True)
        for length in range(1, openers.LONGEST + 1)
    }
    written = (context.run.root / "public/opened.parquet").stat().st_mtime_ns
    assert openers.opened(context, path, WORDS, np.array([3, 2]), codes).equals(found)
    assert (context.run.root / "public/opened.parquet").stat().st_mtime_ns == written, "once"
    again = openers.opened(context, path, WORDS, np.array([0, 4]), codes)
    assert all("cat" in text for text in again["text"].to_pylist()), "of other votes"


def test_an_opener_is_no_longer_than_a_base_is_known_to_have_positions_for(context, local_ray, monkeypatch):
    codes, path = Codes(context.recipe.codes, ("topic",)), context.run.public("candidates.parquet")
    model = load_backbone(ModelConfig(base=str(context.run.root / "model")))
    monkeypatch.setattr(openers, "opener_tokens", lambda recipe: 6)
    found = openers.opened(context, path, WORDS, np.array([9, 9]), codes)
    (kept,) = context.run.root.glob("public/openers-*.json")
    begun = json.loads(kept.read_text())
    assert len(begun) == 18
    assert max(len(model.ids(opener)) for _, opener in begun) <= 6
    assert len(found) > 0
    monkeypatch.setattr(openers, "opener_tokens", lambda recipe: 1)
    none = openers.opened(context, path, WORDS, np.array([8, 9]), codes)
    assert none.column_names == found.column_names
    assert len(none) == 0


def test_a_word_stands_where_the_model_finds_it_likeliest():
    begun = [(cell, f"begun {place}") for place, cell in enumerate([0, 1] * 50)]
    chances = np.random.default_rng(0).random((100, 2)) * 1e-3
    chances[:, 0][7], chances[:, 1] = 1.0, 0.0
    found = openers.drawn(begun, chances, WORDS, np.array([200, 30]), 5)
    assert found == openers.drawn(begun, chances, WORDS, np.array([200, 30]), 5)
    assert [opener.split()[-1] for _, opener in found] == ["soup"] * 200 + ["cat"] * 30
    soup = [opener for _, opener in found[:200]]
    assert soup.count("begun 7 soup") > 150
    best = {f"begun {place} soup" for place in np.argsort(-chances[:, 0])[: openers.LIKELIEST]}
    assert set(soup) <= best
    assert all(cell == int(opener.split()[1]) % 2 for cell, opener in found), "each with the code of its text"


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_a_chance_does_not_depend_on_what_is_asked_beside_it(tiny_base, dtype, near):
    model = load_backbone(ModelConfig(base=str(tiny_base), dtype=dtype))
    texts = ["we", "topic: food\nwe eat bread with", "my dog", "bread"]
    together = openers.chances_of(model, texts, WORDS)
    alone = np.concatenate([openers.chances_of(model, [text], WORDS) for text in texts])
    assert np.allclose(together, alone, rtol=near)
    assert (together > 0).all()
    assert (together.sum(axis=1) < 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_with_what_is_missing_each_word_has_its_share(seed):
    draw = np.random.default_rng(seed)
    found, wanted = draw.integers(0, 4, 500), draw.dirichlet(np.ones(5))
    more = openers.missing(wanted, found)
    counts = np.bincount(found, minlength=5) + more
    assert (counts >= np.rint(500 * wanted)).all()
    assert (more[np.bincount(found, minlength=5) >= 500 * wanted + 1] == 0).all(), "and no more than it lacks"
