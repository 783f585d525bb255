"""A tiny random Llama with a tokenizer of its own, for benchmarks of what is around the model."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rayprivacy.corpus.public import load_prompts

VOCABULARY = 1000


def write_tiny_base(folder: Path) -> Path:
    """Write it (2 layers, width 64, tied head), trained on nothing; returns the folder."""
    bytes_and_merges = Tokenizer(models.BPE())
    bytes_and_merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_and_merges.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bytes_and_merges.train_from_iterator(load_prompts(None), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_and_merges, bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(2026)
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
