r"""A language model that learns what people write behind a prompt, from public pairs.

    start, "VERB TEXT\n", ANSWER, end        (loss on the answer and the end alone)

The prompt may hold the beginning of its answer as well. One model may learn several verbs at once.

It learns by AdamW, without privacy: its pairs must be public, or the model must stay where they are.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rayprivacy.core import console, files
from rayprivacy.models import pretraining, quiet, save, trainable
from rayprivacy.models.backbone import Backbone, Documents
from rayprivacy.models.settings import AdapterConfig

HELD_PAIRS = 32  # at most: their loss is measured
AT_ONCE = 8  # pairs in one call of the model
_SORTED = 8  # batches among which pairs are sorted by length, so that little of a batch is filling
Pair = tuple[str, str]  # a prompt, and what comes behind it
Fitted = tuple[Any, dict[str, float]]  # a model, and its loss on held-out pairs before and after


@dataclass(frozen=True)
class Learning:
    """How a model learns; `block` is the recipe's, in whose name training that diverges is refused."""

    block: str
    steps: int
    batch: int
    learning_rate: float
    adapter: AdapterConfig
    answer_tokens: int  # at most; a longer answer is cut, and does not end with the end token


@dataclass(frozen=True)
class _Example:
    """Token ids of a pair, and where its answer begins."""

    ids: list[int]
    first: int


def asked(verb: str, text: str, documents: Documents, most: int, begun: str = "") -> str:
    r"""The prompt for the answer to a text, which may have `begun`; tokens beyond the first `most` are not read."""
    ids = documents.ids(text)
    return f"{verb} {text if len(ids) <= most else documents.text(ids[:most])}\n{begun}"


def split_pairs(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Pairs that are held out, and the others, in an order that a public seed draws."""
    return pretraining.held_out(pairs, HELD_PAIRS)


def fitted(backbone: Backbone, pairs: Sequence[Pair], learning: Learning, progress: console.Told) -> Fitted:
    """A model in the base's number format that has learnt from pairs of prompt and answer."""
    held, others = split_pairs(pairs)

    def read(few: Sequence[Pair]) -> list[_Example]:
        return [_example(backbone, pair, learning.answer_tokens) for pair in few]

    def told(done: int) -> None:
        quiet.trim_memory()  # batches differ in width, and the C library would keep most of what each has freed
        progress(done)

    model = trainable.trainable(backbone, learning.adapter)
    objective = pretraining.Objective(_loss(backbone.end), _predicted, AT_ONCE)
    figures = pretraining.fit(
        model,
        objective,
        _batches(others, read, learning),
        read(held),
        learning.learning_rate,
        told,
        learning.block,
        guarded_steps=learning.steps,
    )
    return trainable.merged(model, backbone), figures


def kept(folder: Path, tokenizer: Any, fit: Callable[[], Fitted], release: str, how: str) -> Path:
    """The folder of a model, trained or found there; its name is made of all that decides the weights.

    Beside it, with the suffix .json, lie its losses. `release` and `how` are for its card, as in `save_model`.
    """
    if not folder.is_dir():
        model, losses = fit()
        files.write_json(folder.with_suffix(".json"), losses)
        save.save_model(model, tokenizer, folder, release, how)
        del model
        quiet.trim_memory(collect=True)  # of copies of the model, which the driver would keep to the end
    return folder


def _example(backbone: Backbone, pair: Pair, answer_tokens: int) -> _Example:
    prompt, answer = pair
    prefix = backbone.prefix(prompt)
    return _Example([*prefix, *backbone.document(answer, answer_tokens)[1:]], len(prefix))


def _batches(
    pairs: Sequence[Pair], read: Callable[[Sequence[Pair]], list[_Example]], learning: Learning
) -> Iterator[list[_Example]]:
    """The examples of each step: all pairs once before any is read again, those of like length together."""
    dice, size = np.random.default_rng(pretraining.SEED), learning.batch
    drawn = pretraining.endlessly(pairs, dice)
    left = learning.steps
    while left:
        taken = read([*itertools.islice(drawn, min(left, _SORTED) * size)])
        taken.sort(key=lambda example: len(example.ids))
        batches = [taken[start : start + size] for start in range(0, len(taken), size)]
        yield from (batches[place] for place in dice.permutation(len(batches)))
        left -= len(batches)


def _predicted(examples: Sequence[_Example]) -> int:
    return sum(len(example.ids) - example.first for example in examples)


def _loss(filling: int) -> Any:
    """The loss of a few examples, right-padded to the longest."""

    def loss(model: Any, examples: Sequence[_Example]) -> torch.Tensor:
        width = max(len(example.ids) for example in examples)
        ids = torch.full((len(examples), width), filling)
        seen, learnt = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for place, example in enumerate(examples):
            ids[place, : len(example.ids)] = torch.tensor(example.ids)
            seen[place, : len(example.ids)] = 1
            learnt[place, example.first : len(example.ids)] = True
        kept = learnt[:, 1:]
        with _scoring(model, kept):
            logits = model(input_ids=ids, attention_mask=seen).logits[0]
        return torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][kept], reduction="sum")

    return loss


@contextmanager
def _scoring(model: Any, kept: torch.Tensor) -> Iterator[None]:
    """Let the output head read some states alone, in one row: its logits are most of the memory, and of prompts unused.

    Args:
        model: which has a head.
        kept: which states, bool [rows, width - 1]; the last one of a row predicts nothing.
    """

    def read(_head: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (inputs[0][:, :-1][kept][None],)

    handle = model.get_output_embeddings().register_forward_pre_hook(read)
    try:
        yield
    finally:
        handle.remove()
