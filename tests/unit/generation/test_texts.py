"""Control codes become counts; texts start with their prompt and end in time, whichever engine draws them."""

import copy
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.private import digest_json, digest_json_list
from rayprivacy.generation import fast
from rayprivacy.generation.codes import CodedPrompts, Codes, CodesConfig
from rayprivacy.generation.decode import cut_prompts, greedy, sample
from rayprivacy.generation.fast import convert, sampler_of
from rayprivacy.generation.onnx import OnnxDecoder
from rayprivacy.generation.settings import ONNX, SamplingConfig, best_engine, require_engine
from rayprivacy.generation.text_writers import WritingTask, _texts, holds_structure, is_degenerate
from rayprivacy.release.histogram import MAX_CELLS

VALUES = {"topic": ("Mozart or Beethoven?", "What if pigs could fly?"), "stars": ("1.0", "5", "other")}
CODES = Codes(CodesConfig(values=VALUES), ("topic", "stars"))


def test_cells_and_labels_are_each_others_inverse_and_a_code_names_them():
    assert CODES.cells == 3 * 3
    labels = [CODES.labels(cell) for cell in range(CODES.cells)]
    assert [CODES.index(values) for values in labels] == list(range(CODES.cells))
    assert len({tuple(values.items()) for values in labels}) == CODES.cells
    assert labels[1] == {"topic": "Mozart or Beethoven?", "stars": "5"}
    assert labels[-1] == {"topic": "other", "stars": "other"}
    assert Codes(CodesConfig(values={"stars": ("other", "1")}), ("stars",)).cells == 2, "other is not doubled"
    none = Codes(CodesConfig(), ())
    assert (none.cells, none.index({}), none.text(0), none.labels(0)) == (1, 0, "", {})
    assert none.draw(none.uniform, 3, 0) == [0, 0, 0]
    # A code is one line that names every label.
    cell = CODES.index({"topic": "Mozart or Beethoven?", "stars": "5"})
    assert CODES.text(cell) == "topic: Mozart or Beethoven? | stars: 5\n"
    assert len({CODES.text(cell) for cell in range(CODES.cells)}) == CODES.cells
    assert all(CODES.text(cell).count("\n") == 1 for cell in range(CODES.cells))


@pytest.mark.parametrize("unlisted", [{"topic": "my own secret"}, {"topic": None}, {"topic": ""}, {}, {"mood": "sad"}])
def test_what_is_not_on_the_public_list_is_other(unlisted):
    assert CODES.labels(CODES.index(unlisted | {"stars": "5"})) == {"topic": "other", "stars": "5"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"values": {"stars": ()}}, "'stars' has an empty list"),
        ({"values": {"stars": ("1", "1")}}, "'stars' has a value twice"),
        ({"values": {"stars": ("1\n2",)}}, "'stars' has a value of several lines"),
        ({"values": {"stars": (1, 2)}}, "write it in quotes"),
        *(({"noise_multiplier": sigma}, "noise_multiplier") for sigma in (0, -1, float("nan"), float("inf"))),
        ({}, "no list for label 'stars': add its public values"),
        ({"values": VALUES | {"stars": ("1",), "mood": ("sad",)}}, "a list for 'mood', which is none of corpus.labels"),
    ],
)
def test_what_cannot_be_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        Codes(CodesConfig.parse({"values": {"topic": ("a",)}} | keys), ("topic", "stars"))


def test_too_many_combinations_are_refused_at_once():
    many = {"zip": tuple(map(str, range(10_000)))}
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"10,001 combinations of labels.*1,000 are taken: choose fewer"):
        Codes(CodesConfig(values=many), ("zip",))
    with pytest.raises(ConfigError, match="1,002,001 combinations"):
        Codes(CodesConfig(values=dict.fromkeys("ab", tuple(map(str, range(1000))))), ("a", "b"))
    assert time.process_time() - start < 1
    assert Codes(CodesConfig(values={"zip": tuple(map(str, range(MAX_CELLS - 1)))}), ("zip",)).cells == MAX_CELLS


def _counts(shares, n):
    codes = Codes(CodesConfig(values={"x": tuple(map(str, range(len(shares) - 1)))}), ("x",))
    return np.bincount(codes.draw(np.array(shares), n, 0), minlength=len(shares)).tolist()


def test_counts_are_the_largest_remainders_and_an_empty_cell_stays_empty():
    assert _counts([0.55, 0.25, 0.2], 10) == [6, 2, 2]
    assert _counts([1 / 3, 1 / 3, 1 / 3], 2) == [1, 1, 0]
    assert _counts([0.2, 0.8], 0) == [0, 0]
    assert _counts([1.0, 3.0], 8) == [2, 6]
    chance = np.random.default_rng(1)
    for n in (1, 10, 997, 100_000):
        shares = chance.dirichlet(np.full(50, 0.1)) * (chance.random(50) > 0.3)
        shares /= shares.sum()
        counts = np.array(_counts(shares.tolist(), n))
        assert counts.sum() == n
        assert np.abs(counts - n * shares).max() < 1
        assert not counts[shares == 0].any()


def test_the_seed_decides_the_order_and_nothing_else():
    shares = np.arange(1.0, 10.0)
    first, again, other = (CODES.draw(shares, 500, seed) for seed in (3, 3, 4))
    assert again == first != other
    assert sorted(other) == sorted(first) != first
    assert all(type(cell) is int for cell in first)
    with pytest.raises(ReleaseError, match="8 shares for 9 codes"):
        CODES.draw(np.ones(8), 3, 0)
    # Prompts of cells are made when they are asked for.
    codes = Codes(CodesConfig(values={"topic": ("trains", "soup")}), ("topic",))
    cells = codes.draw(codes.uniform, 11, 0)
    lazy, whole = CodedPrompts(cells, codes), [(cell, codes.text(cell)) for cell in cells]
    assert [*lazy, *lazy[3:8], lazy[-1]] == [*whole, *whole[3:8], whole[-1]]
    assert len(lazy) == 11
    assert digest_json_list("model", lazy) == digest_json(["model", whole]), "files of earlier versions are found again"


PROMPTS = ["could you tell me", "it", "she went to the market to buy apples", "my favourite book"]


def test_prompts_are_cut_within_their_bounds_and_taken_in_turn(public_sentences):
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


def test_sampling_repeats_with_its_seed(tiny_backbone):
    def drawn(seed):
        return sample(tiny_backbone.model, tiny_backbone, PROMPTS, SamplingConfig(max_tokens=12, seed=seed))

    first, state = drawn(1), torch.random.get_rng_state()
    assert drawn(1) == first != drawn(2)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(7)
    assert drawn(1) == first


def test_documents_start_with_their_prompt_and_are_bounded(tiny_backbone):
    for documents in (
        sample(tiny_backbone.model, tiny_backbone, PROMPTS, SamplingConfig(max_tokens=9)),
        greedy(tiny_backbone.model, tiny_backbone, PROMPTS, 9),
    ):
        assert len(documents) == len(PROMPTS)
        for prompt, document in zip(PROMPTS, documents, strict=True):
            prefix = tiny_backbone.prefix(prompt)
            assert document[: len(prefix)] == prefix
            assert len(prefix) < len(document) <= len(prefix) + 9
    # Left padding does not change a continuation.
    together = greedy(tiny_backbone.model, tiny_backbone, PROMPTS, 8)
    alone = [greedy(tiny_backbone.model, tiny_backbone, [prompt], 8)[0] for prompt in PROMPTS]
    assert together == alone
    many = greedy(tiny_backbone.model, tiny_backbone, [PROMPTS[i % len(PROMPTS)] for i in range(131)], 2)
    assert (len(many), many[128:]) == (131, many[:3]), "more prompts than a batch"
    # Texts are counted while they are written.
    done: list[int] = []
    asked = (tiny_backbone.model, tiny_backbone, PROMPTS[:3], SamplingConfig(max_tokens=8))
    documents = sample(*asked, batch=2, progress=done.append)
    assert done == sorted(done)
    assert {1, 2, 3} <= set(done) <= {0, 1, 2, 3}
    assert documents == sample(*asked, batch=2), "who watches changes nothing"


def test_a_text_stops_at_the_first_end_or_start_token(tiny_backbone):
    start, end = tiny_backbone.start, tiny_backbone.end
    new = [[50, 51, end, end], [50, start, 52, 53], [50, 51, 52, 53], [end, 50, 51, 52]]
    seen: dict[str, Any] = {}

    def generate(ids, **settings):
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


FINE = """no no no no, I mean it
sooooooooooo good!!!!!!!!!!!!!!!!!!!!!!!!!!
Hello............................ are you there?
7 pm?
你好吗
----------------------------- a table --------------------------------
the cat sat on the mat and the dog sat on the mat and the bird sat on the mat as well
https://example.org/a/very/long/address/with/many/parts/in/it/indeed.html""".splitlines()
FINE += ["yes " + "no " * 7 + "yes", "one two " * 9]  # 15 4-grams, 2 of them distinct
COUNT = "five six seven eight nine ten eleven twelve "
DEGENERATE = {
    "empty": ["", " \n\t\u00a0 "],
    "no letters": ["?! ... ___ 4 \U0001f600"],
    "loop": ["so " * 8, "yes " + "no " * 8 + "yes", "I said No no NO no nO no no no to you", "a" * 21, "好的" * 20],
    "repeats": ["I am not sure. " * 8, "a b " * 12, f"one two three four {COUNT}" * 3, "one two " * 9 + "one"],
}


def test_each_kind_is_named_and_ordinary_texts_pass():
    assert [text for text in FINE if is_degenerate(text)] == []
    for reason, texts in DEGENERATE.items():
        assert [is_degenerate(text) for text in texts] == [reason] * len(texts)


NAMES = {"Yield", "Event.start_?", "&", "slots"}


def test_a_name_behind_a_bracket_is_structure_and_words_of_sentences_are_none():
    for text in ("(Yield (Today))", "No (  Yield", "at six (& noon", "(Event.start_?(x", '{"slots": {}}', '[ "slots"'):
        assert holds_structure(f"(fine) and {text}", NAMES)
        assert not holds_structure(text, ())
    for text in ("(yes) :(", "Yield", "(Yields", "so (I slots", "((", "() Yield", "(yield)", ""):
        assert not holds_structure(text, NAMES)


@pytest.mark.parametrize("text", ["ab" * 50_000 + "!", "abcdefgh1" * 20_000, "a " * 50_000, "x" * 19 + "y" * 19])
def test_no_text_makes_a_rule_slow(text):
    start = time.process_time()
    is_degenerate(text * 2)
    holds_structure(text * 2, NAMES)
    holds_structure("( " * 100_000, NAMES)
    assert time.process_time() - start < 1


THREE = PROMPTS[:3]
DRAWS = 12_000
PASSES, FAILS = 1e-4, 1e-8  # p-values; seeds are fixed, so that a test which passed passes again


def _llama(tokenizer, **settings):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, initializer_range=0.2, **sizes, **settings)
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module", params=["tied", "untied", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
def model(request, tiny_backbone, tmp_path_factory):
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
def decoder(model, tiny_backbone, tmp_path_factory):
    return OnnxDecoder(convert(model, tiny_backbone, tmp_path_factory.mktemp("converted")), tiny_backbone)


@torch.no_grad()
def _logits(model, ids):
    found: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return found


def test_the_converted_model_has_the_logits_of_the_model(model, decoder, tiny_backbone):
    exact = copy.deepcopy(model).float()
    for prompt in THREE:
        ids = tiny_backbone.prefix(prompt)
        torch.testing.assert_close(decoder.logits(ids), _logits(exact, ids), rtol=1e-4, atol=1e-4)


Shares = dict[tuple[int, ...], float]
CONFIG = SamplingConfig(max_tokens=3, temperature=0.6, top_k=4, top_p=0.9, seed=5)


def _filtered(logits, config):
    """Next-token probabilities as transformers filters them."""
    unused: Any = None
    logits = logits_process.TemperatureLogitsWarper(config.temperature)(unused, logits.clone())
    logits = logits_process.TopKLogitsWarper(config.top_k)(unused, logits)
    return torch.softmax(logits_process.TopPLogitsWarper(config.top_p)(unused, logits), -1)


def _expected(decoder, documents, prefix, config):
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


def _p_value(counts, expected):
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
def test_continuations_have_the_frequencies_of_the_filtered_distribution(decoder, tiny_backbone):
    """Joint frequencies of three tokens, of prompts of three lengths in one batch; another filter is told apart."""
    asked = THREE * (DRAWS // len(THREE))
    drawn = decoder.sample(asked, CONFIG)
    for place, prompt in enumerate(THREE):
        prefix = tiny_backbone.prefix(prompt)
        counts = Counter(tuple(document[len(prefix) :]) for document in drawn[place :: len(THREE)])
        assert _p_value(counts, _expected(decoder, tiny_backbone, prefix, CONFIG)) > PASSES
        for wrong in ({"temperature": 0.78}, {"top_k": 5, "top_p": 1.0}, {"top_k": 3}):
            other = CONFIG.model_copy(update=wrong)
            assert _p_value(counts, _expected(decoder, tiny_backbone, prefix, other)) < FAILS, wrong


def test_sampling_repeats_with_its_seed_whatever_was_drawn_before(decoder):
    config = SamplingConfig(max_tokens=12, seed=1)
    first = decoder.sample(THREE, config)
    assert decoder.sample(THREE, config.model_copy(update={"seed": 2})) != first
    assert decoder.sample(THREE, config) == first
    assert len({tuple(each) for each in decoder.sample(THREE * 20, config)}) > 35
    assert decoder.sample([], CONFIG) == []


def test_a_text_depends_on_its_own_batch_alone(decoder):
    """Not on the batches beside it, and not on how many are sampled at once."""
    config, asked = SamplingConfig(max_tokens=8, seed=7), THREE * 8
    alone = decoder.sample(asked, config, batch=5)
    assert alone[:5] == decoder.sample(asked[:5], config, batch=5)
    decoder._threads = 3
    try:
        assert decoder.sample(asked, config, batch=5) == alone
    finally:
        decoder._threads = 1


def test_every_token_of_a_long_text_is_one_that_the_filters_leave(decoder, tiny_backbone):
    """Texts end all the time, and those that go on keep the past that is their own."""
    config = SamplingConfig(max_tokens=60, top_k=30, top_p=0.98, seed=2)
    loose = config.model_copy(update={"top_k": 31, "top_p": 0.981})  # a token may lie on the edge
    ended = 0
    for prompt, document in zip(THREE * 20, decoder.sample(THREE * 20, config), strict=True):
        behind = len(tiny_backbone.prefix(prompt))
        new = document[behind:]
        allowed = _filtered(decoder.logits(document[:-1])[behind - 1 :], loose) > 0
        allowed[:, tiny_backbone.end] |= allowed[:, tiny_backbone.start]  # either ends a text
        assert all(allowed[place, token] for place, token in enumerate(new))
        ended += new[-1] == tiny_backbone.end
    assert 0 < ended < 60


def test_a_model_is_converted_once_and_stays_as_it_is(tiny_backbone, tmp_path, monkeypatch):
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


def test_a_stage_that_was_killed_finds_its_folder_and_writes_the_same(tiny_backbone, tmp_path):
    def written():
        with sampler_of(ONNX, tiny_backbone.model, tiny_backbone, tmp_path) as sampler:
            found = sampler(THREE, SamplingConfig(seed=3))
        assert list(tmp_path.iterdir()) == []
        return found

    first = written()
    with pytest.raises(KeyboardInterrupt), sampler_of(ONNX, tiny_backbone.model, tiny_backbone, tmp_path):
        raise KeyboardInterrupt
    assert len(list(tmp_path.iterdir())) == 1
    assert written() == first


def test_a_graph_has_the_heads_and_the_turns_of_the_model(tiny_backbone, tmp_path):
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
def test_a_llama_that_has_more_to_it_has_no_graph(name, tiny_backbone, tmp_path):
    model = _llama(tiny_backbone.tokenizer, **{name: MORE[name]}).eval()
    assert best_engine(model.config) != ONNX
    with pytest.raises(ConfigError, match=r"^the engine 'onnxruntime_float32' cannot convert the model \(ValueError\)"):
        convert(model, tiny_backbone, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_the_quickest_engine_that_is_here_and_takes_the_model(tiny_backbone, monkeypatch):
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


@pytest.mark.parametrize("begun", [True, False])
def test_a_text_that_ends_inside_of_a_mark_ends_in_front_of_it(tiny_backbone, begun):
    mark, prompt, said = "<REDACTED>", "topic: pets\n", "call <REDACTED> at <REDACTED> or a < b"
    before, ids = len(tiny_backbone.prefix(prompt)), [*tiny_backbone.prefix(prompt), *tiny_backbone.ids(said)]
    for end in range(before, len(ids) + 1):
        cut = [ids[:end]]
        texts = {}
        for whole in ("", mark):
            task = WritingTask(Path(), SamplingConfig(), "transformers", 1, Path(), begun=begun, whole=whole)
            (texts[whole],) = _texts(tiny_backbone, lambda prompts, config, cut=cut: cut, task)([prompt], task.config)
        plain, whole = texts[""], texts[mark]
        assert plain.startswith(whole)
        inside = [size for size in range(2, len(mark)) if plain.endswith(mark[:size])]
        assert whole == (plain[: -inside[-1]].rstrip() if inside else plain)
