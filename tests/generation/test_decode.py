"""Sampling: prompts are cut within their bounds, texts start with their prompt and stop at the end token."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.decode import cut_prompts, greedy, sample
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import Backbone

PROMPTS = ["could you tell me", "it", "she went to the market to buy apples", "my favourite book"]


def test_prompts_are_cut_within_their_bounds_and_taken_in_turn(public_sentences: list[str]) -> None:
    cut = cut_prompts(public_sentences, SamplingConfig(texts=100, prompt_words=(2, 4)))
    assert len(cut) == 100
    assert {len(prompt.split()) for prompt in cut} == {2, 3, 4}
    for place, prompt in enumerate(cut):
        assert public_sentences[place % len(public_sentences)].startswith(prompt)
    assert cut_prompts(["one  two"], SamplingConfig(texts=2, prompt_words=(5, 9))) == ["one two"] * 2
    assert cut_prompts(public_sentences, SamplingConfig(texts=20, prompt_words=(2, 4))) == cut[:20]
    assert cut_prompts(public_sentences, SamplingConfig(texts=20, prompt_words=(2, 4), seed=4)) != cut[:20]
    for words in ([4, 1], [-3, -1]):
        with pytest.raises(ConfigError):
            SamplingConfig.parse({"prompt_words": words})


def test_sampling_repeats_with_its_seed(tiny_backbone: Backbone) -> None:
    def drawn(seed: int) -> list[list[int]]:
        return sample(tiny_backbone.model, tiny_backbone, PROMPTS, SamplingConfig(max_tokens=12, seed=seed))

    first, state = drawn(1), torch.random.get_rng_state()
    assert drawn(1) == first != drawn(2)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(7)
    assert drawn(1) == first


def test_documents_start_with_their_prompt_and_are_bounded(tiny_backbone: Backbone) -> None:
    for documents in (
        sample(tiny_backbone.model, tiny_backbone, PROMPTS, SamplingConfig(max_tokens=9)),
        greedy(tiny_backbone.model, tiny_backbone, PROMPTS, 9),
    ):
        assert len(documents) == len(PROMPTS)
        for prompt, document in zip(PROMPTS, documents, strict=True):
            prefix = tiny_backbone.prefix(prompt)
            assert document[: len(prefix)] == prefix
            assert len(prefix) < len(document) <= len(prefix) + 9


def test_left_padding_does_not_change_a_continuation(tiny_backbone: Backbone) -> None:
    together = greedy(tiny_backbone.model, tiny_backbone, PROMPTS, 8)
    alone = [greedy(tiny_backbone.model, tiny_backbone, [prompt], 8)[0] for prompt in PROMPTS]
    assert together == alone
    many = greedy(tiny_backbone.model, tiny_backbone, [PROMPTS[i % len(PROMPTS)] for i in range(131)], 2)
    assert (len(many), many[128:]) == (131, many[:3]), "more prompts than a batch"


def test_a_text_stops_at_the_first_end_or_start_token(tiny_backbone: Backbone) -> None:
    start, end = tiny_backbone.start, tiny_backbone.end
    new = [[50, 51, end, end], [50, start, 52, 53], [50, 51, 52, 53], [end, 50, 51, 52]]
    seen: dict[str, Any] = {}

    def generate(ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        seen.update(settings, ids=ids)
        return torch.cat([ids, torch.tensor(new)], 1)

    model: Any = SimpleNamespace(generate=generate)
    documents = sample(model, tiny_backbone, PROMPTS, SamplingConfig(max_tokens=4, top_k=7, top_p=0.5))
    tails = [doc[len(tiny_backbone.prefix(prompt)) :] for prompt, doc in zip(PROMPTS, documents, strict=True)]
    assert tails == [[50, 51, end], [50, end], [50, 51, 52, 53], [end]]
    for prompt, ids, mask in zip(PROMPTS, seen["ids"].tolist(), seen["attention_mask"].tolist(), strict=True):
        prefix = tiny_backbone.prefix(prompt)
        assert (ids[-len(prefix) :], mask) == (prefix, [0] * (len(ids) - len(prefix)) + [1] * len(prefix))
    assert seen["eos_token_id"] == sorted({start, end})
    assert (seen["do_sample"], seen["top_k"], seen["top_p"], seen["max_new_tokens"]) == (True, 7, 0.5, 4)


def test_texts_are_counted_while_they_are_written(tiny_backbone: Backbone) -> None:
    done: list[int] = []
    asked = (tiny_backbone.model, tiny_backbone, PROMPTS[:3], SamplingConfig(max_tokens=8))
    documents = sample(*asked, batch=2, progress=done.append)
    assert done == sorted(done)
    assert {1, 2, 3} <= set(done) <= {0, 1, 2, 3}
    assert documents == sample(*asked, batch=2), "who watches changes nothing"
