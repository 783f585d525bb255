"""Continue public prompts with a causal language model (Hugging Face `generate`), in batches, reproducibly."""

import random
from typing import Any

import torch

from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import Backbone

BATCH = 128


def cut_prompts(prompts: list[str], config: SamplingConfig) -> list[str]:
    """As many prompts as texts: taken in turn, each cut to a random number of words within `prompt_words`.

    >>> cut_prompts(["one two three"], SamplingConfig(texts=2, prompt_words=(2, 2)))
    ['one two', 'one two']
    """
    draw = random.Random(config.seed)
    return [
        " ".join(prompts[i % len(prompts)].split()[: draw.randint(*config.prompt_words)]) for i in range(config.texts)
    ]


def sample(model: Any, backbone: Backbone, prompts: list[str], config: SamplingConfig) -> list[list[int]]:
    """Sample one continuation of every prompt.

    Returns:
        Documents: `start, prompt, continuation`, and `end` where the model ended the text by itself.
    """
    filters = {"do_sample": True, "temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    return _continue(model, backbone, prompts, config.max_tokens, config.seed, filters)


def continuations(model: Any, backbone: Backbone, prompts: list[str], config: SamplingConfig) -> list[str]:
    """One sampled continuation of every prompt, as text and without the prompt."""
    documents = sample(model, backbone, prompts, config)
    return [
        backbone.text(document[len(backbone.prefix(prompt)) :])
        for document, prompt in zip(documents, prompts, strict=True)
    ]


def greedy(model: Any, backbone: Backbone, prompts: list[str], max_tokens: int) -> list[list[int]]:
    """The most likely continuation of every prompt; same shape of answer as `sample`."""
    return _continue(model, backbone, prompts, max_tokens, 0, {"do_sample": False})


@torch.no_grad()
def _continue(
    model: Any, backbone: Backbone, prompts: list[str], max_tokens: int, seed: int, filters: dict[str, Any]
) -> list[list[int]]:
    documents: list[list[int]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for at in range(0, len(prompts), BATCH):
            prefixes = [backbone.prefix(prompt) for prompt in prompts[at : at + BATCH]]
            ids, seen = _left_padded(prefixes, backbone.end)
            stops = sorted({backbone.start, backbone.end})
            out = model.generate(
                ids,
                attention_mask=seen,
                max_new_tokens=max_tokens,
                eos_token_id=stops,
                pad_token_id=backbone.end,
                **filters,
            )
            continuations = out[:, ids.shape[1] :].tolist()
            documents += [
                prefix + _ended(new, stops, backbone.end) for prefix, new in zip(prefixes, continuations, strict=True)
            ]
    return documents


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
