"""A tiny model with random weights of each causal language model family that transformers knows."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
WIDTH, LAYERS, HEADS = 32, 2, 4
# Every name under which configs say how large a model is; a config takes those that it has.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "embedding_size"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "num_decoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "num_encoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_decoder_attention_heads", "attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), HEADS),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups"), 1),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "d_inner"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_positions", "max_position_embeddings", "max_target_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("head_dim", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), WIDTH // HEADS),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "index_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "index_n_heads", "mamba_n_heads"), HEADS),
    **{"mamba_d_head": 16, "mamba_head_dim": 16, "mamba_num_heads": HEADS, "index_topk": 8},
    **{"vocab_size_per_layer_input": 16, "hidden_size_per_layer_input": 0, "expert_ffn_hidden_size": 16},
    "first_k_dense_replace": 1,  # of two layers, so that the other has experts
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
}
# What the sizes above do not fit, by family.
_HEAD = {"head_dim": WIDTH // HEADS}
_OWN: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "ctrl": {"dff": 64},
    "dbrx": {"attn_config": {"kv_n_heads": HEADS, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": HEADS, "head_dim": 16},
    "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": HEADS},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": (16, 16), "axial_pos_shape": (8, 16)},
    "xlm": {"emb_dim": WIDTH},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"layer_types": ["mamba", "hybrid"]},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
# Parts of larger systems, which transformers itself does not make from a config of theirs, or not without packages.
NOT_MADE = (
    "dots3_note",
    "gemma3n",
    "gemma4_assistant",
    "gemma4_unified_assistant",
    "longcat_flash",  # saved and loaded, a tiny one computes otherwise by 0.4%, and why is not known
    "musicgen",
    "musicgen_melody",
    "zamba",
)


def tiny_config(family: str, vocabulary: int, **changes: Any) -> Any:
    """The config of a model of this family with WIDTH, LAYERS and HEADS."""
    kind = CONFIG_MAPPING[family]
    return kind(**_sizes(kind(), vocabulary) | _OWN.get(family, {}) | changes)


def _sizes(config: Any, vocabulary: int) -> dict[str, Any]:
    """What is overwritten of a config with default values, and of those that it holds for text, pictures and sound."""
    has = config.to_dict()
    sizes = {name: value for name, value in _SIZES.items() if has.get(name) is not None or name.endswith("_id")}
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            sizes[name] = _sizes(part, vocabulary)
    return sizes | ({"vocab_size": vocabulary} if "vocab_size" in has else {})


def tiny_model(family: str, vocabulary: int, **changes: Any) -> Any:
    """A model with random weights, in evaluation mode; the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return AutoModelForCausalLM.from_config(tiny_config(family, vocabulary, **changes)).eval()
