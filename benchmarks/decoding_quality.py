"""Whether engines write texts of one distribution: perplexity under the model, MAUVE, and next-token distances."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.evaluation.fidelity import mauve
from rayprivacy.generation.fast import convert
from rayprivacy.generation.onnx import OnnxDecoder
from rayprivacy.generation.settings import ONNX
from rayprivacy.models.backbone import Backbone

BATCH = 64
COMPARED = 100  # texts along which next-token distributions are compared
DIMENSIONS = 64
RESAMPLES = 500
HALVES = 10


def quality(backbone: Backbone, documents: dict[str, list[list[int]]], reference: str) -> dict[str, Any]:
    """Figures of each engine's texts.

    Args:
        backbone: the model that all of them sampled from, in float32.
        documents: token ids by engine.
        reference: the engine that the others are compared with.
    """
    scored = {engine: _scored(backbone, texts) for engine, texts in documents.items()}
    features = _reduced({engine: states for engine, (_, _, states) in scored.items()})
    figures: dict[str, Any] = {}
    for engine, (nll, tokens, _) in scored.items():
        figures[engine] = {
            "perplexity": round(float(np.exp(nll.sum() / tokens.sum())), 2),
            "perplexity_95": _interval(nll, tokens),
            "tokens_per_text": round(float(tokens.mean()), 2),
            "mauve": _mauve(features[reference], features[engine], same=engine == reference),
        }
        if engine == ONNX:
            figures[engine] |= _distances(backbone, documents[reference][:COMPARED])
    return {"texts": len(documents[reference]), "engines": figures}


@torch.no_grad()
def _scored(backbone: Backbone, documents: list[list[int]]) -> tuple[npt.NDArray[Any], ...]:
    """Of each text: summed negative log-likelihood in nats, predicted tokens, and mean final state."""
    order = sorted(range(len(documents)), key=lambda place: len(documents[place]))
    nll, tokens, states = np.zeros(len(order)), np.zeros(len(order)), np.zeros((len(order), backbone.width))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        longest = max(len(documents[place]) for place in batch)
        ids = torch.tensor([documents[place] + [-1] * (longest - len(documents[place])) for place in batch])
        inside = ids >= 0  # padding comes last, where a causal model does not look
        hidden = backbone.model.base_model(input_ids=ids.clamp(min=0), use_cache=False).last_hidden_state
        wanted = inside[:, 1:]
        losses = torch.zeros(wanted.shape)
        losses[wanted] = torch.nn.functional.cross_entropy(
            hidden[:, :-1][wanted] @ backbone.head.T, ids[:, 1:][wanted], reduction="none"
        )
        nll[batch], tokens[batch] = losses.sum(1), wanted.sum(1)
        states[batch] = (hidden * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)
    return nll, tokens, states


def _interval(nll: npt.NDArray[Any], tokens: npt.NDArray[Any]) -> list[float]:
    """95% bootstrap interval over texts."""
    draws = np.random.default_rng(0).integers(len(nll), size=(RESAMPLES, len(nll)))
    found = np.exp(nll[draws].sum(1) / tokens[draws].sum(1))
    return [round(float(each), 2) for each in np.quantile(found, [0.025, 0.975])]


def _reduced(states: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The first principal components of all states together, each text's of length 1."""
    together = np.concatenate(list(states.values()))
    together = (together - together.mean(0)) / together.std(0)
    directions = np.linalg.eigh(together.T @ together)[1][:, -DIMENSIONS:]
    found = together @ directions
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    ends = np.cumsum([len(each) for each in states.values()])[:-1]
    return dict(zip(states, np.split(found, ends), strict=True))


def _mauve(reference: npt.NDArray[Any], other: npt.NDArray[Any], *, same: bool) -> dict[str, float]:
    """Mean and standard deviation of MAUVE between random halves, of one engine's texts or of two engines'."""
    found = []
    for seed in range(HALVES):
        draw = np.random.default_rng(seed)
        first, second = np.array_split(draw.permutation(len(reference)), 2)
        theirs = second if same else draw.permutation(len(other))[: len(second)]
        found.append(mauve(reference[first], other[theirs], seed))
    return {"mean": round(float(np.mean(found)), 4), "std": round(float(np.std(found, ddof=1)), 4)}


@torch.no_grad()
def _distances(backbone: Backbone, documents: list[list[int]]) -> dict[str, float]:
    """Total variation and Kullback-Leibler divergence (nats) of next-token distributions, over all positions."""
    variation, divergence = [], []
    with tempfile.TemporaryDirectory() as scratch:
        decoder = OnnxDecoder(convert(backbone.model, backbone, Path(scratch)), backbone)
        for ids in documents:
            expected = torch.log_softmax(backbone.model(torch.tensor([ids])).logits[0], -1)
            found = torch.log_softmax(decoder.logits(ids), -1)
            variation.append((expected.exp() - found.exp()).abs().sum(1) / 2)
            divergence.append((expected.exp() * (expected - found)).sum(1))
    return {
        "total_variation": round(float(torch.cat(variation).mean()), 5),
        "total_variation_max": round(float(torch.cat(variation).max()), 5),
        "divergence": round(float(torch.cat(divergence).mean()), 6),
    }
