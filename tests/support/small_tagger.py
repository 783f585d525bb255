"""Tiny random bases with real tokenizers, and requests with intents and word labels that a small job learns from."""

from pathlib import Path
from typing import Any

INTENTS, SLOTS = ("eat", "go"), ("food", "place")
WORDS = {"soup": "B-food", "bread": "B-food", "home": "B-place", "mat": "B-place"}


def save_tiny_bert(out: Path, sentences: list[str]) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, BertTokenizerFast

    normal, divided = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words = {word for each in sentences for word, _ in divided.pre_tokenize_str(normal.normalize_str(each))}
    letters = sorted(set("".join(words)))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # Not by the library's trainer, which orders pieces otherwise in each process.
    known = [*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words - {*letters})]
    pieces = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(known)}, unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normal, divided
    marks = [(mark, pieces.token_to_id(mark)) for mark in ("[SEP]", "[CLS]")]
    pieces.post_processor = processors.BertProcessing(*marks)
    tokenizer = BertTokenizerFast(tokenizer_object=pieces)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return _save(out, BertModel, BertConfig(initializer_range=0.1, **shape, max_position_embeddings=64), tokenizer)


def save_tiny_llama(out: Path, sentences: list[str]) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bytes_and_merges = Tokenizer(models.BPE())
    bytes_and_merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_and_merges.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bytes_and_merges.train_from_iterator(sentences, trainer)
    marks = dict(zip(("bos_token", "eos_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_and_merges, **marks)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 512}
    config = LlamaConfig(initializer_range=0.1, **shape, tie_word_embeddings=True, **_marks(tokenizer))
    return _save(out, LlamaForCausalLM, config, tokenizer)


def save_tiny_gpt2(out: Path, llama: Path) -> Path:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    tokenizer = AutoTokenizer.from_pretrained(llama)
    config = GPT2Config(initializer_range=0.1, n_embd=32, n_layer=2, n_head=4, n_positions=64, **_marks(tokenizer))
    return _save(out, GPT2LMHeadModel, config, tokenizer)


def _marks(tokenizer: Any) -> dict[str, int]:
    return {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}


def _save(out: Path, kind: Any, config: Any, tokenizer: Any) -> Path:
    """Save a random model, always the same one, with its tokenizer."""
    import torch

    config.vocab_size = len(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20240607)
        kind(config).eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def labelled(sentence: str) -> tuple[str, str]:
    """The intent of a sentence and the labels of its words: public rules, so that there is something to learn."""
    words = sentence.split()
    return ("eat" if "soup" in words else "go"), " ".join(WORDS.get(word, "O") for word in words)
