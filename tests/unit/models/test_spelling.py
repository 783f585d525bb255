"""Control tokens that are spelled in a text are text, with every kind of tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rayprivacy.models.backbone import Documents

CONTROL = ("<pad>", "</s>", "<|im_end|>")
LETTERS = "\u2581abcdefghijklmnopqrstuvwxyz<>/|_"
WORDS = ["<unk>", *CONTROL, *LETTERS]
MODELS = {
    "unigram": models.Unigram([(word, -3.0 * (word in LETTERS)) for word in WORDS], unk_id=0),
    "bpe": models.BPE({word: at for at, word in enumerate(WORDS)}, [], unk_token="<unk>", ignore_merges=True),
}


def documents(kind):
    tokenizer = Tokenizer(MODELS[kind])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "additional_special_tokens": ["<|im_end|>"],
    }
    return Documents.of(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names))


BOTH = {kind: documents(kind) for kind in MODELS}


@pytest.mark.parametrize("kind", MODELS)
@given(text=st.lists(st.sampled_from(["hello", "you", " ", *CONTROL]), min_size=1).map("".join))
def test_a_text_holds_no_control_token_and_is_read_back(kind, text):
    found = BOTH[kind]
    ids = found.document(text, 1000)
    control = set(found.tokenizer.all_special_ids) - {found.tokenizer.unk_token_id}
    assert control.isdisjoint(ids[1:-1])
    assert found.prefix(text)[1:] == ids[1:-1]
    same = [each.replace(" ", "") for each in (found.text(ids), text)]
    assert same[0] == same[1]
