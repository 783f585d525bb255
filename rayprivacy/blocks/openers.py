"""More texts with the released words that candidates lack, which the released model writes behind openers.

    votes -> how many candidates with each word there should be, less those that there are     (released)
    candidates -> their first words -> the released model's chance of each word behind them    (public)
    a word, drawn behind one of the beginnings after which it is likeliest -> an opener        (public)
    openers -> the released model -> more candidates                                           (free)

Choosing among candidates brings no word that the model seldom writes. A text behind an opener has its word, and what
comes before and after is the model's own. Everything here follows the votes: it is post-processing of them, and how
many texts are written is a function of the released shares. Measured by benchmarks/steering.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rayprivacy.blocks import writing
from rayprivacy.blocks.match_plan import TEXTS_OPENED, opener_tokens
from rayprivacy.core.files import read_json, write_json
from rayprivacy.core.private import digest_json
from rayprivacy.generation.codes import Codes
from rayprivacy.generation.text_writers import load_saved
from rayprivacy.generation.writing import read_written
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.quiet import trim_memory
from rayprivacy.runs import directory
from rayprivacy.runs.context import RunContext

LONGEST, TRIED, LIKELIEST, AT_ONCE = 5, 500, 20, 16
_TINY = 1e-30  # all chances of a word may be 0 in float32
Begun = tuple[int, str]  # a cell of control codes, and the first words of a text of it


def missing(shares: npt.NDArray[np.float64], found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many texts lack each cell, so that these and they have the wanted shares: int64 [cells].

    >>> missing(np.array([0.5, 0.3, 0.2]), np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 2])).tolist()
    [0, 2, 1]
    """
    counts = np.bincount(found, minlength=len(shares))
    lacking: npt.NDArray[np.int64] = np.maximum(np.rint(len(found) * shares).astype(np.int64) - counts, 0)
    return lacking


def opened(
    context: RunContext[Any], candidates: Path, words: Sequence[str], lacking: npt.NDArray[np.int64], codes: Codes
) -> pa.Table:
    """A table like that of the candidates, with `lacking` texts behind openers for each word.

    It has fewer where a text is degenerate, and where a word and all first words are longer than `opener_tokens`: a
    base is known to have positions for no more.
    """
    recipe, folder = context.recipe, context.run.root / directory.MODEL
    named = digest_json([read_written(candidates).source, [*words], lacking.tolist()])[:16]
    path, kept = context.run.public("opened.parquet"), context.run.public(f"openers-{named}.json")
    if not kept.exists():  # kept, since another machine's last bits could draw others
        begun = beginnings_of(pq.read_table(candidates), codes, recipe.seed)
        write_json(kept, _drawn_by(load_saved(folder), begun, words, lacking, codes, context))
        trim_memory(collect=True)  # of the model
    prompts = [(cell, codes.text(cell) + opener) for cell, opener in read_json(kept)]
    if not prompts:
        return pq.read_table(candidates).slice(0, 0)
    context.progress.expect(TEXTS_OPENED, len(prompts))
    source = digest_json([named, [list(each) for each in prompts]])
    writing.written_once(context, folder, prompts, recipe.generation, codes, path, source, TEXTS_OPENED, begun=True)
    return pq.read_table(path)


def _drawn_by(
    model: Backbone,
    begun: Sequence[Begun],
    words: Sequence[str],
    lacking: npt.NDArray[np.int64],
    codes: Codes,
    context: RunContext[Any],
) -> list[Begun]:
    most = opener_tokens(context.recipe)
    room = most - max(len(model.ids(f" {word}")) for word in words)
    fit = [(cell, text) for cell, text in begun if len(model.ids(text)) <= room]
    if not fit:
        return []
    chances = chances_of(model, [codes.text(cell) + text for cell, text in fit], words)
    return drawn(fit, chances, words, lacking, context.recipe.seed)


def beginnings_of(candidates: pa.Table, codes: Codes, seed: int) -> list[Begun]:
    """Different first words of texts, one to LONGEST of them, each with the cell of its labels; TRIED at most."""
    draw = np.random.default_rng(seed)
    texts, labels = candidates["text"].to_pylist(), candidates.select(codes.columns).to_pylist()
    labels = labels if codes.columns else [{}] * len(texts)
    lengths = draw.integers(1, LONGEST, len(texts), endpoint=True)
    cut = (" ".join(text.split()[:length]) for text, length in zip(texts, lengths, strict=True))
    found = sorted({(codes.index(row), text) for row, text in zip(labels, cut, strict=True)})
    return [found[place] for place in sorted(draw.permutation(len(found))[:TRIED].tolist())]


@torch.no_grad()
def chances_of(model: Backbone, texts: list[str], words: Sequence[str]) -> npt.NDArray[np.float64]:
    """The chance that the first token of each word comes behind each text, [texts, words]."""
    first = [model.ids(f" {word}")[0] for word in words]
    found, prefixes = np.zeros((len(texts), len(words))), [model.prefix(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda place: len(prefixes[place]))
    for at in range(0, len(order), AT_ONCE):
        batch = order[at : at + AT_ONCE]
        width = len(prefixes[batch[-1]])
        ids = torch.tensor([prefixes[place] + [model.end] * (width - len(prefixes[place])) for place in batch])
        last = torch.tensor([len(prefixes[place]) - 1 for place in batch])
        logits = model.model(input_ids=ids, use_cache=False).logits[torch.arange(len(batch)), last].float()
        found[batch] = logits.softmax(-1)[:, first].numpy()
    return found


def drawn(
    begun: Sequence[Begun],
    chances: npt.NDArray[np.float64],
    words: Sequence[str],
    lacking: npt.NDArray[np.int64],
    seed: int,
) -> list[Begun]:
    """As many openers as each word lacks, by the chance that it comes behind a beginning, of the LIKELIEST for it."""
    draw, found = np.random.default_rng(seed), list[Begun]()
    for word, count, likely in zip(words, lacking.tolist(), chances.T, strict=True):
        best = np.argsort(-likely, kind="stable")[:LIKELIEST]
        weights = likely[best] + _TINY
        places = draw.choice(best, count, p=weights / weights.sum())
        found += [(begun[place][0], f"{begun[place][1]} {word}") for place in places]
    return found
