"""Converted models draw from the distribution of the model itself: logits, next tokens, whole continuations, ends."""

import copy
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation import fast
from rayprivacy.generation.fast import convert, sampler_of
from rayprivacy.generation.onnx import OnnxDecoder
from rayprivacy.generation.settings import ONNX, SamplingConfig, best_engine, require_engine
from rayprivacy.models.backbone import Documents

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPTS = ["could you tell me", "it", "she went to the market to buy apples"]
DRAWS = 12_000
PASSES, FAILS = 1e-4, 1e-8  # p-values; seeds are fixed, so that a test which passed passes again


def _llama(tokenizer: Any, **settings: Any) -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, initializer_range=0.2, **sizes, **settings)
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module", params=["tied", "untied", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
def model(request: pytest.FixtureRequest, tiny_backbone: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A base as it comes, one with a head of its own as students have, and one in bfloat16."""
    torch.manual_seed(1)
    other = {} if request.param == "bfloat16" else {"tie_word_embeddings": request.param == "tied"}
    made = _llama(tiny_backbone.tokenizer, **other, **({"rope_theta": 1e5} if request.param == "untied" else {}))
    if request.param == "bfloat16":
        folder = tmp_path_factory.mktemp("saved")
        made.to(torch.bfloat16).save_pretrained(folder)
        made = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return made.eval()


ONCE = pytest.mark.parametrize("model", ["untied"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def decoder(model: Any, tiny_backbone: Documents, tmp_path_factory: pytest.TempPathFactory) -> OnnxDecoder:
    return OnnxDecoder(convert(model, tiny_backbone, tmp_path_factory.mktemp("converted")), tiny_backbone)


@torch.no_grad()
def _logits(model: Any, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return found


def test_the_converted_model_has_the_logits_of_the_model(model: Any, decoder: Any, tiny_backbone: Any) -> None:
    exact = copy.deepcopy(model).float()
    for prompt in PROMPTS:
        ids = tiny_backbone.prefix(prompt)
        torch.testing.assert_close(decoder.logits(ids), _logits(exact, ids), rtol=1e-4, atol=1e-4)


Shares = dict[tuple[int, ...], float]
CONFIG = SamplingConfig(max_tokens=3, temperature=0.6, top_k=4, top_p=0.9, seed=5)


def _filtered(logits: torch.Tensor, config: SamplingConfig) -> torch.Tensor:
    """Next-token probabilities as transformers filters them."""
    unused: Any = None
    logits = logits_process.TemperatureLogitsWarper(config.temperature)(unused, logits.clone())
    logits = logits_process.TopKLogitsWarper(config.top_k)(unused, logits)
    return torch.softmax(logits_process.TopPLogitsWarper(config.top_p)(unused, logits), -1)


def _expected(decoder: OnnxDecoder, documents: Documents, prefix: list[int], config: SamplingConfig) -> Shares:
    """The probability of every continuation of up to `max_tokens` tokens, one forward pass for each of its tokens."""
    open_, found = {(): 1.0}, Counter[tuple[int, ...]]()
    for _ in range(config.max_tokens):
        longer: Shares = {}
        for new, share in open_.items():
            following = _filtered(decoder.logits([*prefix, *new])[-1:], config)[0]
            for token in following.nonzero().flatten().tolist():
                probability = share * float(following[token])
                if token in (documents.start, documents.end):
                    found[(*new, documents.end)] += probability
                else:
                    longer[*new, token] = probability
        open_ = longer
    return {**found, **open_}


def _p_value(counts: Counter[tuple[int, ...]], expected: Shares) -> float:
    if counts.keys() - expected.keys():
        return 0.0
    total = counts.total()
    cells = sorted(expected, key=lambda cell: expected[cell])
    kept = [cell for cell in cells if expected[cell] * total >= 10]
    groups = [[cell] for cell in kept[1:]] + [[*cells[: len(cells) - len(kept)], *kept[:1]]]  # what is rare, together
    observed = [sum(counts[cell] for cell in group) for group in groups]
    wanted = np.array([sum(expected[cell] for cell in group) for group in groups])
    return float(chisquare(observed, wanted * total / wanted.sum()).pvalue)


@ONCE
def test_continuations_have_the_frequencies_of_the_filtered_distribution(decoder: Any, tiny_backbone: Any) -> None:
    """Joint frequencies of three tokens, of prompts of three lengths in one batch; another filter is told apart."""
    asked = PROMPTS * (DRAWS // len(PROMPTS))
    drawn = decoder.sample(asked, CONFIG)
    for place, prompt in enumerate(PROMPTS):
        prefix = tiny_backbone.prefix(prompt)
        counts = Counter(tuple(document[len(prefix) :]) for document in drawn[place :: len(PROMPTS)])
        assert _p_value(counts, _expected(decoder, tiny_backbone, prefix, CONFIG)) > PASSES
        for wrong in ({"temperature": 0.78}, {"top_k": 5, "top_p": 1.0}, {"top_k": 3}):
            other = CONFIG.model_copy(update=wrong)
            assert _p_value(counts, _expected(decoder, tiny_backbone, prefix, other)) < FAILS, wrong


def test_sampling_repeats_with_its_seed_whatever_was_drawn_before(decoder: OnnxDecoder) -> None:
    config = SamplingConfig(max_tokens=12, seed=1)
    first = decoder.sample(PROMPTS, config)
    assert decoder.sample(PROMPTS, config.model_copy(update={"seed": 2})) != first
    assert decoder.sample(PROMPTS, config) == first
    assert len({tuple(each) for each in decoder.sample(PROMPTS * 20, config)}) > 35
    assert decoder.sample([], CONFIG) == []


def test_a_text_depends_on_its_own_batch_alone(decoder: OnnxDecoder) -> None:
    """Not on the batches beside it, and not on how many are sampled at once."""
    config, asked = SamplingConfig(max_tokens=8, seed=7), PROMPTS * 8
    alone = decoder.sample(asked, config, batch=5)
    assert alone[:5] == decoder.sample(asked[:5], config, batch=5)
    decoder._threads = 3
    try:
        assert decoder.sample(asked, config, batch=5) == alone
    finally:
        decoder._threads = 1


def test_every_token_of_a_long_text_is_one_that_the_filters_leave(decoder: Any, tiny_backbone: Any) -> None:
    """Texts end all the time, and those that go on keep the past that is their own."""
    config = SamplingConfig(max_tokens=60, top_k=30, top_p=0.98, seed=2)
    loose = config.model_copy(update={"top_k": 31, "top_p": 0.981})  # a token may lie on the edge
    ended = 0
    for prompt, document in zip(PROMPTS * 20, decoder.sample(PROMPTS * 20, config), strict=True):
        behind = len(tiny_backbone.prefix(prompt))
        new = document[behind:]
        allowed = _filtered(decoder.logits(document[:-1])[behind - 1 :], loose) > 0
        allowed[:, tiny_backbone.end] |= allowed[:, tiny_backbone.start]  # either ends a text
        assert all(allowed[place, token] for place, token in enumerate(new))
        ended += new[-1] == tiny_backbone.end
    assert 0 < ended < 60


def test_a_model_is_converted_once_and_stays_as_it_is(tiny_backbone: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("something was asked for over a network"))
    before = {name: tensor.clone() for name, tensor in tiny_backbone.model.state_dict().items()}
    folder = convert(tiny_backbone.model, tiny_backbone, tmp_path)
    assert list(tmp_path.iterdir()) == [folder]
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny_backbone.model.state_dict().items())
    made = (folder / "weights").stat()
    assert convert(tiny_backbone.model, tiny_backbone, tmp_path) == folder
    assert (folder / "weights").stat().st_mtime_ns == made.st_mtime_ns
    changed = copy.deepcopy(tiny_backbone.model)
    changed.get_output_embeddings().weight.data[7] += 1
    monkeypatch.setattr(fast, "next_token_distance", lambda *_: 0.1)
    with pytest.raises(ConfigError, match=r"^the engine 'onnxruntime_float32' makes another .* use 'transformers'\.$"):
        convert(changed, tiny_backbone, tmp_path)  # it is found to be another one, which comes out wrong
    assert list(tmp_path.iterdir()) == [folder]


def test_a_stage_that_was_killed_finds_its_folder_and_writes_the_same(tiny_backbone: Any, tmp_path: Path) -> None:
    def written() -> list[list[int]]:
        with sampler_of(ONNX, tiny_backbone.model, tiny_backbone, tmp_path) as sampler:
            found = sampler(PROMPTS, SamplingConfig(seed=3))
        assert list(tmp_path.iterdir()) == []
        return found

    first = written()
    with pytest.raises(KeyboardInterrupt), sampler_of(ONNX, tiny_backbone.model, tiny_backbone, tmp_path):
        raise KeyboardInterrupt
    assert len(list(tmp_path.iterdir())) == 1
    assert written() == first


def test_a_graph_has_the_heads_and_the_turns_of_the_model(tiny_backbone: Any, tmp_path: Path) -> None:
    """Heads of a width of their own, angles that are stretched."""
    torch.manual_seed(1)
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 16
    wide = _llama(tiny_backbone.tokenizer, head_dim=32, rope_parameters=rope).eval()
    decoder = OnnxDecoder(convert(wide, tiny_backbone, tmp_path), tiny_backbone)
    ids = list(range(5, 105))
    torch.testing.assert_close(decoder.logits(ids), _logits(wide, ids), rtol=1e-4, atol=1e-4)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
MORE = {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "head_dim": 8, "rope_parameters": DYNAMIC}


@pytest.mark.parametrize("name", MORE)
def test_a_llama_that_has_more_to_it_has_no_graph(name: str, tiny_backbone: Any, tmp_path: Path) -> None:
    model = _llama(tiny_backbone.tokenizer, **{name: MORE[name]}).eval()
    assert best_engine(model.config) != ONNX
    with pytest.raises(ConfigError, match=r"^the engine 'onnxruntime_float32' cannot convert the model \(ValueError\)"):
        convert(model, tiny_backbone, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_the_quickest_engine_that_is_here_and_takes_the_model(tiny_backbone: Any, monkeypatch: Any) -> None:
    llama, gpt2 = tiny_backbone.model.config, GPT2Config()
    assert [best_engine(each) for each in (llama, gpt2)] == [ONNX, "transformers"]
    with pytest.raises(ConfigError, match=r"^generation.engine is 'ctranslate2', which is not installed: "):
        require_engine("generation.engine", "ctranslate2")  # as a run of an earlier version has it
    monkeypatch.setitem(sys.modules, "onnx", None)
    said = r"which is not installed: run pip install 'rayprivacy\[fast\]', or use 'transformers'\.$"
    with pytest.raises(ConfigError, match=f"^generation.engine is 'onnxruntime_float32', {said}"):
        require_engine("generation.engine", ONNX)
    assert best_engine(llama) == "transformers"
    require_engine("generation.engine", "transformers")
