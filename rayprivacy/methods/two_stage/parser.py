"""A semantic parser: a language model that learns from annotated public pairs, and reads private records one at a time.

    utterance -> its first tokens -> the most likely tree under the masks of the grammar: complete? -> the tree
                                                                                       otherwise -> UNREAD

On private text this has to be a function of the record alone, to the last bit, or else one user would change the trees
of others. So each utterance is a call of its own, without filling and without company; tokens are the most likely ones,
and not drawn; both lengths have fixed public bounds. Whatever goes wrong in a record ends in the same public constant
as a tree that is not complete in time: no exception leaves, and no count.

What it learns from:

    start, "parse UTTERANCE\n", TREE, end        (loss on the tree and the end alone)

It learns by AdamW, without privacy: its pairs must be public, or the model must stay where they are.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rayprivacy.core import console, files, private
from rayprivacy.generation.decode import greedy
from rayprivacy.models import pretraining, save, trainable
from rayprivacy.models.backbone import Backbone, Documents
from rayprivacy.models.settings import AdapterConfig, ParserConfig
from rayprivacy.structures.grammar import Grammar
from rayprivacy.structures.masks import Matcher, matcher_of
from rayprivacy.structures.trees import names

ADAPTER = AdapterConfig(rank=16)  # LoRA in all layers
HELD_PAIRS = 32  # at most: their loss is measured
AT_ONCE = 8  # pairs in one call of the model
_SORTED = 8  # batches among which pairs are sorted by length, so that little of a batch is filling
Pair = tuple[str, str]


@dataclass(frozen=True)
class _Example:
    """Token ids of a pair, and where its tree begins."""

    ids: list[int]
    first: int


def asked(utterance: str, documents: Documents, most: int) -> str:
    r"""The prompt for the tree of an utterance; tokens beyond the first `most` are not read."""
    ids = documents.ids(utterance)
    return f"parse {utterance if len(ids) <= most else documents.text(ids[:most])}\n"


def split_pairs(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Pairs that are held out, and the others, in an order that a public seed draws."""
    return pretraining.held_out(pairs, HELD_PAIRS)


def kept_parser(
    backbone: Backbone,
    pairs: Sequence[Pair],
    config: ParserConfig,
    tree_tokens: int,
    progress: console.Told,
    parent: Path,
    release: str,
    how: str,
) -> Path:
    """The folder of a parser, trained or found trained under a name made of all that decides its weights.

    Beside it, with the suffix .json, lie its losses. `release` and `how` are for its card, as in `save_model`.
    """
    settings = config.model_dump(mode="json", exclude={"source", "text"})
    name = private.digest_json([backbone.digest, settings, tree_tokens, list(pairs)])
    folder = parent / f"parser-{name[:16]}"
    if not folder.is_dir():
        model, losses = fitted_parser(backbone, pairs, config, tree_tokens, progress)
        files.write_json(folder.with_suffix(".json"), losses)
        save.save_model(model, backbone.tokenizer, folder, release, how)
    return folder


def fitted_parser(
    backbone: Backbone, pairs: Sequence[Pair], config: ParserConfig, tree_tokens: int, progress: console.Told
) -> tuple[Any, dict[str, float]]:
    """A parser in the base's number format, and its loss on held-out pairs before and after.

    Trees of more than `tree_tokens` are cut, and do not end with the end token.
    """
    held, others = ([_example(backbone, pair, config, tree_tokens) for pair in part] for part in split_pairs(pairs))
    model = trainable.trainable(backbone, ADAPTER)
    objective = pretraining.Objective(_loss(backbone.end), _predicted, AT_ONCE)
    batches = _batches(others, config)
    figures = pretraining.fit(
        model, objective, batches, held, config.learning_rate, progress, "parser", guarded_steps=config.steps
    )
    return trainable.merged(model, backbone), figures


def _example(backbone: Backbone, pair: Pair, config: ParserConfig, tree_tokens: int) -> _Example:
    utterance, tree = pair
    prefix = backbone.prefix(asked(utterance, backbone, config.max_tokens))
    return _Example([*prefix, *backbone.document(tree, tree_tokens)[1:]], len(prefix))


def _batches(examples: Sequence[_Example], config: ParserConfig) -> Iterator[list[_Example]]:
    """The examples of each step: all of them once before any is read again, those of like length together."""
    dice, size = np.random.default_rng(pretraining.SEED), config.batch
    drawn = pretraining.endlessly(examples, dice)
    left = config.steps
    while left:
        taken = sorted(itertools.islice(drawn, min(left, _SORTED) * size), key=lambda example: len(example.ids))
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
        logits = model(input_ids=ids, attention_mask=seen).logits
        kept = learnt[:, 1:]
        return torch.nn.functional.cross_entropy(logits[:, :-1][kept].float(), ids[:, 1:][kept], reduction="sum")

    return loss


UNREAD = ""  # as in a row without a tree


@dataclass(frozen=True)
class Parser:
    """A parser with its bounds.

    Of an utterance at most `text_tokens` are read, and of a tree `tree_tokens` written. Without the public rules of a
    grammar, whatever is a tree is taken.
    """

    backbone: Backbone = field(repr=False)
    text_tokens: int
    tree_tokens: int
    grammar: Grammar | None = None

    def __call__(self, utterance: str) -> str:
        """The tree of a private utterance, or `UNREAD`; never an exception."""
        try:
            return self.read(utterance)
        except Exception:  # noqa: BLE001 - a failure would show, and quote, the record that it is of
            return UNREAD

    def read(self, utterance: str) -> str:
        """The tree of an utterance, or `UNREAD`; failures of the model or of the machine are raised."""
        prompt = asked(utterance, self.backbone, self.text_tokens)
        masks = self._matcher.masks if self._matcher else None
        (ids,) = greedy(self.backbone.model, self.backbone, [prompt], self.tree_tokens, masks)
        tree = self.backbone.text_after(prompt, ids)
        accepted = self._matcher.accepts(tree) if self._matcher else names(tree) is not None
        return tree if accepted else UNREAD

    @cached_property
    def _matcher(self) -> Matcher | None:
        if self.grammar is None:
            return None
        return matcher_of(self.grammar, self.backbone, int(self.backbone.model.config.vocab_size))
