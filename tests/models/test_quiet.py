"""Our stages load and save models without the progress bars of transformers, and leave them to other code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
from transformers.utils import logging

from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig

PARTS = ("gate", "up", "down")
BARS = ("GGUF tensors", "Loading weights", "Writing model shards", "%|")
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "o_proj": "attn_output"}
NAMES |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
NAMES |= {f"{part}_proj": f"attn_{part}" for part in "qkv"} | {f"{part}_proj": f"ffn_{part}" for part in PARTS}


@pytest.fixture(autouse=True)
def bars() -> Iterator[None]:
    """Progress bars of transformers are on, as in a fresh process."""
    shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    yield
    if not shown:
        logging.disable_progress_bar()


@pytest.fixture(scope="module")
def tiny_gguf(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_base` as a GGUF file."""
    out = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer = json.loads((tiny_base / "tokenizer.json").read_text())["model"]
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(model.config.num_hidden_layers)
    writer.add_context_length(model.config.max_position_embeddings)
    writer.add_embedding_length(model.config.hidden_size)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(model.config.num_attention_heads)
    writer.add_head_count_kv(model.config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(model.config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(tokenizer["vocab"], key=tokenizer["vocab"].get))
    writer.add_token_types([3, 3] + [1] * (len(tokenizer["vocab"]) - 2))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, weights in model.base_model.named_parameters():
        *_, part, _ = parts = name.split(".")
        block = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        writer.add_tensor(f"{block}{NAMES[part]}.weight", weights.detach().numpy())
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return out


def test_a_gguf_base_is_converted_loaded_and_saved_without_a_bar_and_other_code_has_its_own(
    tiny_gguf: Path, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
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


def test_bars_are_back_after_an_error() -> None:
    bar = modeling_gguf_pytorch_utils.tqdm
    with pytest.raises(OSError, match="gone"), no_progress_bars():
        raise OSError("gone")
    assert logging.is_progress_bar_enabled()
    assert modeling_gguf_pytorch_utils.tqdm is bar
    logging.disable_progress_bar()
    with no_progress_bars():
        pass
    assert not logging.is_progress_bar_enabled(), "bars that were off stay off"
