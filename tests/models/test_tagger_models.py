"""The bi-LSTM and the CRF of taggers: rows have nothing to do with each other, and sums are those of the definition."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.sources import glove
from rayprivacy.tagging import bilstm
from rayprivacy.tagging.bilstm import BYTES, END, FIRST_WORD, START, UNKNOWN, WordTokenizer
from rayprivacy.tagging.crf import Crf, likeliest, negative_log_likelihood
from rayprivacy.tagging.settings import _OF_AN_LSTM, TaggerConfig, tagger_size

TOKENIZER = WordTokenizer(("the", "play"))
LABELS, WORDS = 3, 4
LENGTHS = torch.tensor([4, 2, 1, 0])


@pytest.fixture(scope="module")
def lstm(one_thread: None) -> Backbone:
    """The tagger as a run begins with it."""
    return load_backbone(TaggerConfig(base="bilstm", dtype="bfloat16", intents=("go",), slots=("food",)))


def _ids(backbone: Backbone, text: str) -> list[int]:
    return [START, *backbone.tokenizer(text)["input_ids"], END]


def _padded(lines: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, lines))
    real = [[at < len(line) for at in range(width)] for line in lines]
    return torch.tensor([line + [END] * (width - len(line)) for line in lines]), torch.tensor(real)


def test_words_and_their_first_bytes_become_one_line_and_are_taken_apart_again() -> None:
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


def test_a_row_says_the_same_alone_and_beside_longer_ones(lstm: Backbone) -> None:
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


def test_vectors_are_those_of_glove_and_estimates_know_the_size(lstm: Backbone) -> None:
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
def given() -> tuple[Tensor, Tensor, Tensor]:
    """Emissions, labels and transitions of four rows."""
    random = torch.Generator().manual_seed(3)
    crf = Crf(LABELS)
    crf.transitions.weight.data = torch.randn(LABELS + 1, LABELS, generator=random) * 2
    emissions = torch.randn(len(LENGTHS), WORDS, LABELS, generator=random) * 2
    return emissions, torch.randint(0, LABELS, (len(LENGTHS), WORDS), generator=random), crf(len(LENGTHS)).detach()


def _score(emissions: Tensor, path: tuple[int, ...], transitions: Tensor) -> Tensor:
    steps = zip((LABELS, *path), path, strict=False)
    return sum((emissions[at, to] + transitions[step, to] for at, (step, to) in enumerate(steps)), torch.zeros(()))


def test_it_is_the_definition_summed_over_all_sequences(given: tuple[Tensor, Tensor, Tensor]) -> None:
    emissions, labels, transitions = given
    found = negative_log_likelihood(emissions, labels, LENGTHS, transitions)
    paths = likeliest(emissions, LENGTHS, transitions)
    for row, length in enumerate(LENGTHS.tolist()):
        scores, moves = emissions[row].double(), transitions[row].double()
        every = {path: _score(scores, path, moves) for path in product(range(LABELS), repeat=length)}
        loss = torch.stack(list(every.values())).logsumexp(0) - every[tuple(labels[row, :length].tolist())]
        assert float(found[row]) == pytest.approx(float(loss), rel=1e-5)
        assert tuple(paths[row]) == max(every, key=lambda path: float(every[path]))


def test_a_row_is_the_same_to_the_last_bit_whatever_stands_in_the_others(given: tuple[Tensor, Tensor, Tensor]) -> None:
    emissions, labels, transitions = given

    def gradient(emissions: Tensor, labels: Tensor, lengths: Tensor) -> list[Tensor]:
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


def test_transitions_that_forbid_are_obeyed() -> None:
    """Huge scores, as a model that is sure has: the forward algorithm is in log space."""
    transitions = torch.full((1, LABELS + 1, LABELS), -1e4)
    for before, label in ((3, 0), (0, 1), (1, 2), (2, 0)):
        transitions[0, before, label] = 1e4
    emissions = torch.zeros(1, WORDS, LABELS)
    assert likeliest(emissions, torch.tensor([WORDS]), transitions) == [[0, 1, 2, 0]]
    labels = torch.tensor([[0, 1, 2, 0]])
    assert negative_log_likelihood(emissions, labels, torch.tensor([WORDS]), transitions) == 0
