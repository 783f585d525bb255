"""What of the base is trained, without chance; and the models of taggers, whose rows are on their own."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import worker
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.sources import glove
from rayprivacy.models.trainable import checkpointed, merged, repeatable, trainable
from rayprivacy.tagging import bilstm
from rayprivacy.tagging.bilstm import BYTES, END, FIRST_WORD, START, UNKNOWN, WordTokenizer
from rayprivacy.tagging.crf import Crf, likeliest, negative_log_likelihood
from rayprivacy.tagging.settings import _OF_AN_LSTM, TaggerConfig, tagger_size

IDS = torch.randint(0, 300, (3, 12), generator=torch.Generator().manual_seed(1))


def _gradients(model):
    logits = model(input_ids=IDS, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), IDS[:, 1:].flatten())
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


def test_lora_trains_matrices_of_the_chosen_layers_from_one_start(tiny_backbone):
    model = trainable(tiny_backbone, AdapterConfig(rank=4, layers=1))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert all("lora_" in name and ".layers.1." in name for name in trained)
    assert {each.dtype for each in trained.values()} == {torch.float32}
    whole = trainable(tiny_backbone, AdapterConfig(rank=4))
    assert sum(each.requires_grad for each in whole.parameters()) == 2 * len(trained)
    again = trainable(tiny_backbone, AdapterConfig(rank=4)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.state_dict().items())
    assert not any("lm_head" in name for name in trained)
    with pytest.raises(ConfigError, match=r"adapter\.layers is 3 and the base has 2"):
        trainable(tiny_backbone, AdapterConfig(layers=3))


def test_full_trains_every_weight_and_leaves_the_base_alone(tiny_backbone):
    model = trainable(tiny_backbone, AdapterConfig(kind="full"))
    assert all(each.requires_grad for each in model.parameters())
    assert not any(each.requires_grad for each in tiny_backbone.model.parameters())
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert not torch.equal(next(model.parameters()), next(tiny_backbone.model.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_what_is_not_trained_lies_where_the_base_has_it_and_nothing_moves_it(kind, dtype, tiny_base):
    backbone = load_backbone(ModelConfig(base=str(tiny_base), dtype=str(dtype).removeprefix("torch.")))
    held = {name: each.clone() for name, each in backbone.model.state_dict().items()}
    model = trainable(backbone, AdapterConfig(kind=kind))
    trained = [each for each in model.parameters() if each.requires_grad]
    assert not _places(trained) & _places(backbone.model.parameters())
    if kind == "lora":
        assert _places(backbone.model.parameters()) <= _places(model.parameters())
    with torch.no_grad():
        for each in trained:
            each.add_(0.5)
    moved = [each.clone() for each in trained]
    plain = merged(model, backbone)
    assert not _places(trained) & _places(plain.parameters())
    assert any(not torch.equal(held[name], each) for name, each in plain.state_dict().items())
    model.to(torch.float64)  # as a move to another device does it
    assert {name: each.dtype for name, each in backbone.model.state_dict().items()} == dict.fromkeys(held, dtype)
    assert all(torch.equal(held[name], each) for name, each in backbone.model.state_dict().items())
    assert all(torch.equal(own.float(), each) for own, each in zip(trained, moved, strict=True))


def _places(weights):
    return {each.data_ptr() for each in weights}


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_checkpointing_changes_no_gradient(kind, tiny_backbone):
    kept = trainable(tiny_backbone, AdapterConfig(kind=kind))
    again = checkpointed(trainable(tiny_backbone, AdapterConfig(kind=kind)))
    calls: list[Any] = []
    for model in (kept, again):
        attention = next(each for name, each in model.named_modules() if name.endswith("self_attn"))
        attention.register_forward_hook(lambda module, *_: calls.append(module))
    expected, found = _gradients(kept), _gradients(again)
    assert [len({*calls}), len(calls)] == [2, 3], "the first layer's attention is computed twice for one gradient"
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


SIZE = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 0}
COMMON = ("gpt2", "opt", "falcon", "persimmon", "llama", "mistral", "qwen3", "gemma3_text", "bert", "gpt_neox")
OTHERS = (
    "gpt_neo", "gptj", "bloom", "phi", "phi3", "stablelm", "qwen2", "gemma", "gemma2", "cohere", "olmo", "olmo2",
    "granite", "starcoder2", "glm", "helium", "smollm3", "xglm", "biogpt", "codegen",
)  # fmt: skip


def _with_rates(family):
    """A tiny model of a family with every rate of its config at 0.5."""
    config = CONFIG_MAPPING[family]()
    shape = SIZE | {"intermediate_size": 64, "num_key_value_heads": 4, "head_dim": 8, "eos_token_id": 0, "d_model": 32}
    shape |= {"max_position_embeddings": 64, "pad_token_id": 0, "ffn_dim": 64, "decoder_layers": 2, "dff": 64}
    shape |= {"decoder_attention_heads": 4, "num_decoder_layers": 2, "decoder_ffn_dim": 64, "word_embed_proj_dim": 32}
    shape |= {"num_decoder_attention_heads": 4, "attention_types": [[["global"], 2]], "rotary_dim": 4}
    rates = {name: 0.5 for name, value in vars(config).items() if "drop" in name and isinstance(value, (int, float))}
    known = {*vars(config), *config.attribute_map}
    given = {name: value for name, value in (shape | rates | {"is_decoder": True}).items() if name in known}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**given), attn_implementation="eager").eval()


@pytest.mark.parametrize("family", [*COMMON, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in OTHERS)])
def test_no_rate_of_any_family_draws_in_any_mode(family, tiny_backbone):
    """Some call dropout as a function, some read their config in the forward pass, some leave out layers."""
    base = _with_rates(family)
    asleep, awake = _logits(base), _logits(base.train())
    assert family in ("llama", "gemma3_text") or not torch.equal(asleep, awake), "the family has rates that are seen"
    for way in ("as it is", "in training mode", "checkpointed"):
        model = trainable(Backbone(tiny_backbone.tokenizer, 0, 0, model=base.eval()), AdapterConfig(kind="full"))
        model = checkpointed(model) if way == "checkpointed" else model.train(way == "in training mode")
        torch.manual_seed(1)
        first = _gradients(model)
        torch.manual_seed(2)
        second = _gradients(model)
        assert first
        assert all(torch.equal(first[name], second[name]) for name in first), way


def _logits(model):
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_merged_model_is_an_ordinary_one_that_computes_the_same(kind, tiny_backbone, tmp_path):
    model = trainable(tiny_backbone, AdapterConfig(kind=kind, rank=4))
    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad:
                each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(2)) * 0.02)
    save_model(merged(model, tiny_backbone), tiny_backbone.tokenizer, tmp_path / "model", "r", "Trained in a test.")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ours, theirs, base = map(_logits, (model, loaded, tiny_backbone.model))
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(theirs, base, atol=1e-2)


@pytest.fixture
def no_gpu_yet(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("no_gpu_yet")
def test_only_a_gpu_is_held_and_before_the_model_is_there(monkeypatch):
    for name in ("cpu", "cuda"):
        assert repeatable(torch.device(name)) == torch.device(name)
        assert torch.are_deterministic_algorithms_enabled() is (name == "cuda")
    torch.use_deterministic_algorithms(False)

    def moved(_device):
        raise InterruptedError("the model is moved to its device")

    monkeypatch.setattr(worker, "get_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(worker, "trainable", lambda *_: SimpleNamespace(to=moved))
    job: Any = SimpleNamespace(model=SimpleNamespace(dtype="float32"), adapter=None)
    unused: Any = None
    with pytest.raises(InterruptedError):
        worker._engine(job, unused, unused, unused)
    assert torch.are_deterministic_algorithms_enabled()


TOKENIZER = WordTokenizer(("the", "play"))
LABELS, WORDS = 3, 4
LENGTHS = torch.tensor([4, 2, 1, 0])


@pytest.fixture(scope="module")
def lstm(one_thread):
    """The tagger as a run begins with it."""
    return load_backbone(TaggerConfig(base="bilstm", dtype="bfloat16", intents=("go",), slots=("food",)))


def _ids(backbone, text):
    return [START, *backbone.tokenizer(text)["input_ids"], END]


def _padded(lines):
    width = max(map(len, lines))
    real = [[at < len(line) for at in range(width)] for line in lines]
    return torch.tensor([line + [END] * (width - len(line)) for line in lines]), torch.tensor(real)


def test_words_and_their_first_bytes_become_one_line_and_are_taken_apart_again():
    read = TOKENIZER("Play zý " + "x" * 40)
    known, unknown = [FIRST_WORD + 1, *b"Play"], [UNKNOWN, *"zý".encode()]
    assert read["input_ids"] == [*known, *unknown, UNKNOWN, *b"x" * bilstm.MOST_BYTES]
    assert read["offset_mapping"] == [(0, 4)] * 5 + [(5, 7)] * 4 + [(8, 48)] * (1 + bilstm.MOST_BYTES)
    assert TOKENIZER("") == {"input_ids": [], "offset_mapping": []}
    assert TOKENIZER("\ud800")["input_ids"] == [UNKNOWN, *b"?"], "half a character, which has no bytes"
    ids, real = _padded([[START, FIRST_WORD, *b"the", UNKNOWN, *b"zoo", END], [START, UNKNOWN, *b"a", END]])
    is_word = (ids >= BYTES) & real
    words, letters = bilstm._taken_apart(ids, is_word, is_word.cumsum(1) - 1, real)
    assert (words + BYTES).tolist() == [[START, FIRST_WORD, UNKNOWN, END], [START, UNKNOWN, END, BYTES]]
    spelt = [[bytes(letter for letter in word if letter < BYTES) for word in row] for row in letters.tolist()]
    assert spelt == [[b"", b"the", b"zoo", b""], [b"", b"a", b"", b""]]


def test_a_row_says_the_same_alone_and_beside_longer_ones(lstm):
    lines = [_ids(lstm, text) for text in ("go home", "the cat sat on my mat and likes soup", "soup")]
    ids, real = _padded(lines)
    together = lstm.model(input_ids=ids, attention_mask=real).logits
    for row, line in enumerate(lines):
        alone = lstm.model(input_ids=torch.tensor([line]), attention_mask=torch.ones(1, len(line), dtype=torch.bool))
        torch.testing.assert_close(together[row, : len(line)], alone.logits[0], rtol=1e-5, atol=1e-6)

    # A word that is on no list is read by its letters.
    ids, real = _padded([_ids(lstm, "xqzzv"), _ids(lstm, "vzzqx")])
    logits = lstm.model(input_ids=ids, attention_mask=real).logits
    assert not torch.equal(logits[0, 1], logits[1, 1])


def test_vectors_are_those_of_glove_and_estimates_know_the_size(lstm):
    weights = sum(each.numel() for each in lstm.model.lstm.parameters() if each.dim() == 2)
    assert weights == _OF_AN_LSTM
    size = tagger_size(TaggerConfig(base="bilstm"), heads_alone=False)
    assert size.trained(6.0) == pytest.approx(6.0 * weights), "one token in six is a word"
    words, vectors = glove("a test")
    at = lstm.tokenizer.words.index("soup")
    assert lstm.tokenizer.words[at] == words[at]
    assert np.array_equal(lstm.model.words.weight[FIRST_WORD - BYTES + at].numpy(), vectors[at].astype(np.float32))
    assert lstm.model.frozen_parts == [lstm.model.words]
    assert lstm.model.dtype == torch.float32, "whatever the recipe says"


@pytest.fixture
def given():
    """Emissions, labels and transitions of four rows."""
    random = torch.Generator().manual_seed(3)
    crf = Crf(LABELS)
    crf.transitions.weight.data = torch.randn(LABELS + 1, LABELS, generator=random) * 2
    emissions = torch.randn(len(LENGTHS), WORDS, LABELS, generator=random) * 2
    return emissions, torch.randint(0, LABELS, (len(LENGTHS), WORDS), generator=random), crf(len(LENGTHS)).detach()


def _score(emissions, path, transitions):
    steps = zip((LABELS, *path), path, strict=False)
    return sum((emissions[at, to] + transitions[step, to] for at, (step, to) in enumerate(steps)), torch.zeros(()))


def test_it_is_the_definition_summed_over_all_sequences(given):
    emissions, labels, transitions = given
    found = negative_log_likelihood(emissions, labels, LENGTHS, transitions)
    paths = likeliest(emissions, LENGTHS, transitions)
    for row, length in enumerate(LENGTHS.tolist()):
        scores, moves = emissions[row].double(), transitions[row].double()
        every = {path: _score(scores, path, moves) for path in product(range(LABELS), repeat=length)}
        loss = torch.stack(list(every.values())).logsumexp(0) - every[tuple(labels[row, :length].tolist())]
        assert float(found[row]) == pytest.approx(float(loss), rel=1e-5)
        assert tuple(paths[row]) == max(every, key=lambda path: float(every[path]))


def test_a_row_is_the_same_to_the_last_bit_whatever_stands_in_the_others(given):
    emissions, labels, transitions = given

    def gradient(emissions, labels, lengths):
        inputs = emissions.clone().requires_grad_(), transitions.clone().requires_grad_()
        losses = negative_log_likelihood(inputs[0], labels, lengths, inputs[1])
        return [losses[1].detach(), *(each[1] for each in torch.autograd.grad(losses.sum(), inputs))]

    others = torch.tensor([1, 2, 4, 4])
    changed = torch.where(torch.arange(4)[:, None, None] == 1, emissions, emissions.flip(0) * 1e3)
    same = labels.where(torch.arange(4)[:, None] == 1, labels.flip(1))
    first, second = gradient(emissions, labels, LENGTHS), gradient(changed, same, others)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    # A row without words has no loss and no gradient.
    emissions, labels, transitions = given
    inputs = emissions.requires_grad_(), transitions.requires_grad_()
    losses = negative_log_likelihood(inputs[0], labels, LENGTHS, inputs[1])
    assert losses[3] == 0
    assert not any(each[3].any() for each in torch.autograd.grad(losses.sum(), inputs))
    # Transitions that forbid are obeyed: huge scores, as a model that is sure has, and sums in log space.
    transitions = torch.full((1, LABELS + 1, LABELS), -1e4)
    for before, label in ((3, 0), (0, 1), (1, 2), (2, 0)):
        transitions[0, before, label] = 1e4
    emissions = torch.zeros(1, WORDS, LABELS)
    assert likeliest(emissions, torch.tensor([WORDS]), transitions) == [[0, 1, 2, 0]]
    labels = torch.tensor([[0, 1, 2, 0]])
    assert negative_log_likelihood(emissions, labels, torch.tensor([WORDS]), transitions) == 0
