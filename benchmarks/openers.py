"""Texts that a finished run's model writes behind openers with released words, or as the run writes them.

Read by benchmarks/steering.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayprivacy.blocks.openers import beginnings_of, chances_of, drawn
from rayprivacy.corpus.public import load_prompts
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.generation.text_writers import is_degenerate, load_saved, without_lines

SEED = 77


def more_texts(
    run: Path, recipe: Any, candidates: pa.Table, words: list[str], lacking: npt.NDArray[np.int64], usually: bool
) -> pa.Table:
    """A table like the candidates, of as many texts as words lack: as the run writes them, or behind openers."""
    model, count = load_saved(run / "model"), int(lacking.sum())
    config = recipe.generation.model_copy(update={"seed": SEED, "texts": count})
    codes = Codes(recipe.codes, recipe.corpus.labels) if recipe.corpus.labels else Codes(CodesConfig(), ())

    def usual() -> list[tuple[int, str]]:
        if not codes.columns:
            cut = cut_prompts(load_prompts(getattr(recipe, "prompts", None)), config)
            return [(0, prompt) for prompt in cut]
        places = np.random.default_rng(SEED).integers(0, len(candidates), count)
        rows = candidates.select(codes.columns).take(pa.array(places)).to_pylist()
        return [(codes.index(row), "") for row in rows]

    def opened() -> list[tuple[int, str]]:
        begun = beginnings_of(candidates, codes, SEED)
        chances = chances_of(model, [codes.text(cell) + text for cell, text in begun], words)
        return drawn(begun, chances, words, lacking, SEED)

    prompts = usual() if usually else opened()
    coded = [codes.text(cell) + own for cell, own in prompts]
    texts = [
        without_lines(prompt, model.text(ids))
        for prompt, ids in zip(coded, sample(model.model, model, coded, config), strict=True)
    ]
    kept = [
        {"text": text, **codes.labels(cell)}
        for text, (cell, _) in zip(texts, prompts, strict=True)
        if not is_degenerate(text)
    ]
    return pa.Table.from_pylist(kept, candidates.schema.remove_metadata())
