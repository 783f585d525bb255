"""Texts of the base model's own: drawn from its own probabilities, written once, shared by runs beside each other."""

import os
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from rich.console import Console

from rayprivacy.blocks import pretrain as module
from rayprivacy.blocks.pretrain import own_texts
from rayprivacy.core.console import nobody
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.models.settings import PretrainConfig
from rayprivacy.runs.directory import Run


@pytest.fixture
def config(tmp_path):
    (tmp_path / "prompts.txt").write_text("the bread is\nwe\n")
    return PretrainConfig(prompts=str(tmp_path / "prompts.txt"), texts=12, max_tokens=8)


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the sampler from here on."""
    found: list[SamplingConfig] = []
    real = module.fast.sampler_of

    def watched(*arguments):
        sampler = real(*arguments).__enter__()

        def sample(prompts, sampling):
            found.append(sampling)
            return sampler(prompts, sampling)

        return nullcontext(sample)

    monkeypatch.setattr(module.fast, "sampler_of", watched)
    return found


@pytest.fixture
def texts(tmp_path, tiny_base, tiny_backbone, config):
    """The texts of a run by its name, with changes of the settings."""

    def made(name="one", engine="transformers", **changes):
        blocks = {"model": {"base": str(tiny_base)}, "generation": {"engine": engine}, "privacy": {"epsilon": 8.0}}
        recipe = parse_recipe({"method": "generator", **blocks})
        run: Run[Any] = Run.open(tmp_path / name, recipe, resume=True, console=Console(quiet=True))
        return own_texts(run, tiny_backbone, config.model_copy(update=changes), nobody)

    return made


def test_texts_are_drawn_from_the_base_itself(tiny_backbone, texts, asked):
    documents = texts()
    assert len(documents) == 12
    whole = [tiny_backbone.text(document).startswith("the bread is") for document in documents]
    assert whole == [True, False] * 6, "prompts are used whole, in turn"
    (sampling,) = asked
    assert (sampling.temperature, sampling.top_p) == (1.0, 1.0)
    logits = torch.randn(len(tiny_backbone.head))
    assert len(logits.topk(sampling.top_k).values) == len(logits), "no token is ruled out"


@pytest.mark.parametrize("engine", ["transformers", "onnxruntime_float32"])
def test_a_text_that_was_cut_has_no_end(tiny_backbone, texts, engine):
    ended = []
    for document, prompt in zip(texts(engine=engine, texts=64), ("the bread is", "we") * 32, strict=True):
        written = document[len(tiny_backbone.prefix(prompt)) :]
        ended.append(written[-1] == tiny_backbone.end)
        assert len(written) == 8 or (len(written) < 8 and ended[-1])
    assert not all(ended)


def test_they_are_written_once_and_shared(tmp_path, texts, asked):
    one = texts()
    assert texts() == texts("two") == one
    assert len(asked) == 1
    (tmp_path / "prompts.txt").write_text("we\nthe bread is\n")
    changes: list[dict[str, int]] = [{}, {"texts": 13}, {"max_tokens": 9}, {"text_tokens": 3}]
    changes.append({"text_tokens": 3, "sentences": 1})
    for number, change in enumerate(changes, 2):
        texts("two", **change)
        assert len(asked) == number, change
    texts("three", "onnxruntime_float32")
    assert asked[-1].max_tokens == 3, "rows are longer than texts"
    assert len(asked) == 6, "a run with another engine shares them too"


def test_those_of_another_owner_are_not_read(texts, asked, monkeypatch):
    texts()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    texts("two")
    assert len(asked) == 2


def test_a_text_ends_with_its_first_sentences_and_goes_on_where_it_has_fewer(tiny_backbone, texts, monkeypatch):
    start, end = [tiny_backbone.start], [tiny_backbone.end]
    whole, more, cut = (tiny_backbone.prefix(text) for text in ("we eat. We go.", "the end. We go home. And", "we eat"))
    written = [[*whole, *end], more, cut, [*cut, *end]]
    monkeypatch.setattr(module.fast, "sampler_of", lambda *_: nullcontext(lambda prompts, sampling: written))
    found = texts(sentences=1)
    assert [tiny_backbone.text(document) for document in found] == ["we eat.", "the end.", "we eat", "we eat"]
    assert [document[:1] == start and document[-1:] == end for document in found] == [True, True, False, True]
