"""Continue public prompts with a causal language model (Hugging Face `generate`), in batches, reproducibly."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from rayprivacy.core.console import Told, nobody
from rayprivacy.generation.settings import BATCH, SamplingConfig
from rayprivacy.models.backbone import Documents

Sampler = Callable[[list[str], SamplingConfig], list[list[int]]]
Masks = Callable[[], Any]  # makes a processor of logits


def cut_prompts(prompts: list[str], config: SamplingConfig) -> list[str]:
    """As many prompts as texts: taken in turn, each cut to a random number of words within `prompt_words`.

    >>> cut_prompts(["one two three"], SamplingConfig(texts=2, prompt_words=(2, 2)))
    ['one two', 'one two']
    """
    draw = random.Random(config.seed)
    return [
        " ".join(prompts[i % len(prompts)].split()[: draw.randint(*config.prompt_words)]) for i in range(config.texts)
    ]


def sample(
    model: Any,
    documents: Documents,
    prompts: list[str],
    config: SamplingConfig,
    batch: int = BATCH,
    progress: Told = nobody,
    masks: Masks | None = None,
) -> list[list[int]]:
    """Sample one continuation of every prompt; `progress` has how many are written, in part while a batch is.

    `masks` makes a processor of logits for each batch, which may rule tokens out before the filters look at them. What
    comes is documents: `start, prompt, continuation`, and `end` where the model ended the text by itself.
    """
    filters = {"do_sample": True, "temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    return _continue(model, documents, prompts, config.max_tokens, config.seed, filters, batch, progress, masks)


def greedy(
    model: Any, documents: Documents, prompts: list[str], max_tokens: int, masks: Masks | None = None
) -> list[list[int]]:
    """The most likely continuation of every prompt, token by token; documents as `sample` returns them."""
    return _continue(model, documents, prompts, max_tokens, 0, {"do_sample": False}, BATCH, masks=masks)


@torch.no_grad()
def _continue(
    model: Any,
    documents: Documents,
    prompts: list[str],
    max_tokens: int,
    seed: int,
    filters: Mapping[str, object],
    batch: int,
    progress: Told = nobody,
    masks: Masks | None = None,
) -> list[list[int]]:
    begun, stops = [documents.prefix(prompt) for prompt in prompts], sorted({documents.start, documents.end})
    found: list[list[int]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for at in range(0, len(begun), batch):
            prefixes = begun[at : at + batch]
            ids, seen = _left_padded(prefixes, documents.end)
            watch = _Watch(at, len(prefixes), ids.shape[1], max_tokens, progress)
            out = model.generate(
                ids,
                attention_mask=seen,
                max_new_tokens=max_tokens,
                eos_token_id=stops,
                pad_token_id=documents.end,
                stopping_criteria=StoppingCriteriaList([watch]),
                logits_processor=LogitsProcessorList([masks()] if masks else []),
                **filters,
            )
            continuations = out[:, ids.shape[1] :].tolist()
            found += [
                prefix + _ended(new, stops, documents.end) for prefix, new in zip(prefixes, continuations, strict=True)
            ]
            progress(at + len(prefixes))
    return found


class _Watch(StoppingCriteria):
    """Stops nothing: called for each new token of a batch, it counts the batch's texts in part."""

    def __init__(self, before: int, texts: int, width: int, most: int, progress: Told) -> None:
        self._before, self._texts, self._width, self._most = before, texts, width, most
        self._progress = progress

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **more: Any) -> torch.Tensor:
        """Whether to stop, bool [texts]."""
        share = (input_ids.shape[1] - self._width) / self._most
        self._progress(self._before + int(self._texts * min(share, 1.0)))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _left_padded(prefixes: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prefixes))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prefixes])
    seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prefixes])
    return ids, seen


def _ended(new: list[int], stops: list[int], end: int) -> list[int]:
    for place, token in enumerate(new):
        if token in stops:
            return [*new[:place], end]
    return new
