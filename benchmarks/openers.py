"""Openers that end with a released word, and the texts that a released model writes behind them.

    public prompts, cut to one to five words -> chance that a word comes next, by the released model -> opener and word

A word is drawn by its released number of users, and an opener by the chance that the word comes behind it, among the
sixty of the greatest. All of it is public: prompts, words and model. Read by benchmarks/steering.py.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rayprivacy.corpus.public import load_prompts
from rayprivacy.generation.codes import Codes
from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.generation.text_writers import is_degenerate, load_saved

SEED, LONGEST, TRIED, LIKELIEST, AT_ONCE = 77, 5, 1500, 60, 64


def more_texts(
    run: Path, recipe: Any, candidates: pa.Table, users: dict[str, int], count: int
) -> tuple[pa.Table, pa.Table]:
    """Tables like the candidates of texts as the run writes them, and behind openers; degenerate ones are left out."""
    model, config = load_saved(run / "model"), recipe.generation.model_copy(update={"seed": SEED, "texts": count})
    prompts = load_prompts(getattr(recipe, "prompts", None))
    labels = [name for name in candidates.column_names if name != "text"]
    drawn = np.random.default_rng(SEED).integers(0, len(candidates), count)
    rows = candidates.select(labels).take(pa.array(drawn)).to_pylist() if labels else [{}] * count
    codes = Codes(recipe.codes, recipe.corpus.labels) if recipe.corpus.labels else None
    before = [codes.text(codes.index(row)) if codes else "" for row in rows]
    usual = [""] * count if codes else cut_prompts(prompts, config)

    def written(begun: list[str]) -> pa.Table:
        documents = sample(model.model, model, [code + own for code, own in zip(before, begun, strict=True)], config)
        texts = [
            model.text_after(code, ids) if code else model.text(ids)
            for code, ids in zip(before, documents, strict=True)
        ]
        kept = [{"text": text, **row} for text, row in zip(texts, rows, strict=True) if not is_degenerate(text)]
        return pa.Table.from_pylist(kept, candidates.schema.remove_metadata())

    return written(usual), written(openers(model, prompts, users, count))


def openers(model: Any, prompts: list[str], users: dict[str, int], count: int) -> list[str]:
    """As many openers, each with its word at the end."""
    cuts = sorted({" ".join(prompt.split()[:length]) for prompt in prompts for length in range(1, LONGEST + 1)})
    cuts = random.Random(SEED).sample(cuts, min(TRIED, len(cuts)))
    words, shares = [*users], np.array([*users.values()])
    chances = next_words(model, cuts, words)
    draw, found = np.random.default_rng(SEED), []
    for word in draw.choice(len(words), count, p=shares / shares.sum()):
        best = np.argsort(-chances[:, word])[:LIKELIEST]
        place = draw.choice(best, p=chances[best, word] / chances[best, word].sum())
        found.append(f"{cuts[place]} {words[word]}")
    return found


@torch.no_grad()
def next_words(model: Any, texts: list[str], words: list[str]) -> Any:
    """The chance that the first token of each word comes behind each text, [texts, words]."""
    first = [model.ids(f" {word}")[0] for word in words]
    found = np.zeros((len(texts), len(words)))
    prefixes = [model.prefix(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda place: len(prefixes[place]))
    for at in range(0, len(order), AT_ONCE):
        batch = order[at : at + AT_ONCE]
        width = len(prefixes[batch[-1]])
        ids = torch.tensor([prefixes[place] + [model.end] * (width - len(prefixes[place])) for place in batch])
        last = torch.tensor([len(prefixes[place]) - 1 for place in batch])
        logits = model.model(input_ids=ids).logits[torch.arange(len(batch)), last].float()
        found[batch] = logits.softmax(-1)[:, first].numpy()
    return found
