"""The bi-LSTM: words and letters are taken apart as they were put together, and padding says nothing."""

import numpy as np
import pytest
import torch

from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.sources import glove
from rayprivacy.tagging import bilstm
from rayprivacy.tagging.bilstm import (
    BYTES,
    END,
    FIRST_WORD,
    MOST_BYTES,
    START,
    UNKNOWN,
    BiLstmForTokenClassification,
    WordTokenizer,
)
from rayprivacy.tagging.settings import _OF_AN_LSTM, TaggerConfig, tagger_size

TOKENIZER = WordTokenizer(("the", "play"))


@pytest.fixture(scope="module")
def lstm(one_thread: None) -> Backbone:
    """The tagger as a run begins with it."""
    return load_backbone(TaggerConfig(base="bilstm", dtype="bfloat16", intents=("go",), slots=("food",)))


def _ids(backbone: Backbone, text: str) -> list[int]:
    return [START, *backbone.tokenizer(text)["input_ids"], END]


def test_words_and_their_first_bytes_become_one_line() -> None:
    read = TOKENIZER("Play zý " + "x" * 40)
    known, unknown = [FIRST_WORD + 1, *b"Play"], [UNKNOWN, *"zý".encode()]
    assert read["input_ids"] == [*known, *unknown, UNKNOWN, *b"x" * MOST_BYTES]
    assert read["offset_mapping"] == [(0, 4)] * 5 + [(5, 7)] * 4 + [(8, 48)] * (1 + MOST_BYTES)
    assert TOKENIZER("") == {"input_ids": [], "offset_mapping": []}
    assert TOKENIZER("\ud800")["input_ids"] == [UNKNOWN, *b"?"], "half a character, which has no bytes"


def test_words_and_letters_are_taken_apart_again() -> None:
    lines = [[START, FIRST_WORD, *b"the", UNKNOWN, *b"zoo", END], [START, UNKNOWN, *b"a", END]]
    width = max(map(len, lines))
    ids = torch.tensor([line + [END] * (width - len(line)) for line in lines])
    real = torch.tensor([[at < len(line) for at in range(width)] for line in lines])
    is_word = (ids >= BYTES) & real
    words, letters = bilstm._taken_apart(ids, is_word, is_word.cumsum(1) - 1, real)
    assert (words + BYTES).tolist() == [[START, FIRST_WORD, UNKNOWN, END], [START, UNKNOWN, END, BYTES]]
    spelt = [[bytes(letter for letter in word if letter < BYTES) for word in row] for row in letters.tolist()]
    assert spelt == [[b"", b"the", b"zoo", b""], [b"", b"a", b"", b""]]


def test_a_row_says_the_same_alone_and_beside_longer_ones(lstm: Backbone) -> None:
    lines = [_ids(lstm, text) for text in ("go home", "the cat sat on my mat and likes soup", "soup")]
    width = max(map(len, lines))
    ids = torch.tensor([line + [END] * (width - len(line)) for line in lines])
    real = torch.tensor([[at < len(line) for at in range(width)] for line in lines])
    together = lstm.model(input_ids=ids, attention_mask=real).logits
    for row, line in enumerate(lines):
        alone = lstm.model(input_ids=torch.tensor([line]), attention_mask=torch.ones(1, len(line), dtype=torch.bool))
        torch.testing.assert_close(together[row, : len(line)], alone.logits[0], rtol=1e-5, atol=1e-6)


def test_a_word_that_is_on_no_list_is_read_by_its_letters(lstm: Backbone) -> None:
    def said(text: str) -> torch.Tensor:
        line = torch.tensor([_ids(lstm, text)])
        return lstm.model(input_ids=line, attention_mask=torch.ones_like(line, dtype=torch.bool)).logits

    assert not torch.equal(said("xqzzv")[0, 1], said("vzzqx")[0, 1])


def test_estimates_know_its_size(lstm: Backbone) -> None:
    weights = sum(each.numel() for each in lstm.model.lstm.parameters() if each.dim() == 2)
    assert weights == _OF_AN_LSTM
    size = tagger_size(TaggerConfig(base="bilstm"), heads_alone=False)
    assert size.trained(6.0) == pytest.approx(6.0 * weights), "one token in six is a word"


def test_vectors_are_those_of_glove_and_are_not_trained(lstm: Backbone) -> None:
    words, vectors = glove("a test")
    at = lstm.tokenizer.words.index("soup")
    assert lstm.tokenizer.words[at] == words[at]
    assert np.array_equal(lstm.model.words.weight[FIRST_WORD - BYTES + at].numpy(), vectors[at].astype(np.float32))
    assert lstm.model.frozen_parts == [lstm.model.words]
    assert isinstance(lstm.model, BiLstmForTokenClassification)
    assert lstm.model.dtype == torch.float32, "whatever the recipe says"
