"""What a tagger computes of documents whose tokens have labels: the loss that DP-SGD clips, labels, and scores.

A document of a tagger is a document like any other, so that sampling, batches and independence hold for it as they
are: a token and its label are one number (`packed`). Position 0, which carries no weight elsewhere either, is the start
token with the intent; a word's label stands on its first token, or on its last where the model is causal, and all
other tokens have none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from rayprivacy.dpsgd.batches import Batch, Document
from rayprivacy.tagging.bilstm import MODEL_TYPE
from rayprivacy.tagging.crf import likeliest, negative_log_likelihood
from rayprivacy.tagging.model import is_causal
from rayprivacy.tagging.settings import Tags

Array = npt.NDArray[np.float64]
HIGHEST = 3  # scores of each head, at most
_AT_ONCE = 32  # documents that are predicted together
_LEAST = 1e-12


def packed(tokens: Sequence[int], labels: Sequence[int | None], count: int) -> npt.NDArray[np.int32]:
    """Tokens with the numbers of their labels, None without one, as one number each; there are `count` labels."""
    codes = [0 if label is None else label + 1 for label in labels]
    return (np.array(tokens, np.int64) * (count + 1) + np.array(codes, np.int64)).astype(np.int32)


@dataclass(frozen=True)
class Unpacked:
    """A batch as a tagger reads it; each row is a function of that row alone.

    Attributes:
        tokens: token ids, int64 [rows, width].
        real: whether there is a token, bool [rows, width]; the first place of a row of padding counts as one.
        codes: 0 without label, else its number plus one, int64 [rows, width].
    """

    tokens: torch.Tensor
    real: torch.Tensor
    codes: torch.Tensor

    @staticmethod
    def of(batch: Batch, count: int) -> "Unpacked":
        """Take tokens and labels apart, of which there are `count`."""
        real = batch.weights > 0
        real = torch.cat([torch.ones_like(real[:, :1]), real[:, 1:]], 1)
        tokens = torch.div(batch.ids, count + 1, rounding_mode="floor")
        return Unpacked(tokens, real, torch.where(real, batch.ids % (count + 1), 0))


def logits_of(model: Any, read: Unpacked) -> torch.Tensor:
    """What the heads say at every place, float32 [rows, width, labels]."""
    rows, width = read.tokens.shape
    inputs = {"input_ids": read.tokens}
    if model.config.model_type == MODEL_TYPE:
        return _float(model(**inputs, attention_mask=read.real))
    # One line of positions for all rows would lose the axis of the examples in learnt position embeddings.
    inputs["position_ids"] = torch.arange(width, device=read.tokens.device).expand(rows, width).contiguous()
    if is_causal(model):
        return _float(model(**inputs, use_cache=False))  # what is behind, padding too, is never looked at
    # A whole mask, always: transformers leaves one out where no row of the batch needs it, and kernels differ then.
    mask = read.real[:, None, None, :].expand(rows, 1, width, width)
    return _float(model(**inputs, attention_mask=mask, token_type_ids=torch.zeros_like(read.tokens)))


def _float(output: Any) -> torch.Tensor:
    logits: torch.Tensor = output.logits
    return logits.float()


def pooled(logits: torch.Tensor, read: Unpacked) -> torch.Tensor:
    """What the heads say of the mean state of a row's tokens, [rows, labels]: they are linear maps."""
    real = read.real[..., None].float()
    return (logits * real).sum(1) / real.sum(1)


@dataclass(frozen=True)
class Words:
    """The places of a row that have a word's label, in front of all others; in the shape of the batch.

    Attributes:
        emissions: what the word head says there, float32 [rows, width, word labels].
        labels: which word label each has, int64 [rows, width].
        lengths: how many words there are, int64 [rows].
    """

    emissions: torch.Tensor
    labels: torch.Tensor
    lengths: torch.Tensor

    @property
    def there(self) -> torch.Tensor:
        """Which places hold a word, bool [rows, width]."""
        return torch.arange(self.labels.shape[1], device=self.labels.device) < self.lengths[:, None]

    @staticmethod
    def of(logits: torch.Tensor, read: Unpacked, intents: int) -> "Words":
        """Gather them from the heads' outputs; intents come before word labels."""
        is_word = read.codes > intents
        order = torch.argsort((~is_word).int(), dim=1, stable=True)
        outputs = logits[..., intents:]
        emissions = outputs.gather(1, order[..., None].expand(-1, -1, outputs.shape[2]))
        labels = (read.codes - 1 - intents).clamp(min=0).gather(1, order)
        return Words(emissions, labels, is_word.sum(1))


@dataclass(frozen=True)
class TaggerLoss:
    """Losses of rows: cross entropy of the intent, and its mean over words, added up (see `losses.own_losses`).

    Where the model has a CRF, words are scored as a sequence, and its loss is divided by their number. The rows of one
    unit count by how many tokens they have, as they do for a language model.

    Attributes:
        intents: how many intents there are, `other` included.
        labels: how many labels there are, intents included.
    """

    intents: int
    labels: int

    def __call__(self, model: Any, batch: Batch) -> torch.Tensor:
        """Losses in nats, float32 [rows]."""
        read = Unpacked.of(batch, self.labels)
        logits = logits_of(model, read)
        words = Words.of(logits, read, self.intents)
        if _has_crf(model):
            transitions = model.crf(len(words.lengths))
            of_words = negative_log_likelihood(words.emissions, words.labels, words.lengths, transitions)
        else:
            of_words = _word_losses(words)
        means = of_words / words.lengths.clamp(min=1)
        return (self._of_intent(logits, read) + means) * batch.weights.sum(1)

    def _of_intent(self, logits: torch.Tensor, read: Unpacked) -> torch.Tensor:
        is_intent = (read.codes > 0) & (read.codes <= self.intents)
        logs = pooled(logits, read)[:, : self.intents].log_softmax(-1)
        said = logs.gather(1, torch.where(is_intent, read.codes - 1, 0))
        return -torch.where(is_intent, said, 0).sum(1) / is_intent.sum(1).clamp(min=1)


def _has_crf(model: Any) -> bool:
    return bool(model.config.tagger["crf"])


def _word_losses(words: Words) -> torch.Tensor:
    said = words.emissions.log_softmax(-1).gather(2, words.labels[..., None]).squeeze(2)
    return -torch.where(words.there, said, 0).sum(1)


def in_order(documents: Sequence[Document], device: torch.device) -> Iterator[Batch]:
    """Some documents in their order, padded, a few at a time; the weights of each sum to 1."""
    for begin in range(0, len(documents), _AT_ONCE):
        some = documents[begin : begin + _AT_ONCE]
        ids = pad_sequence([torch.from_numpy(each.ids).long() for each in some], batch_first=True)
        weights = pad_sequence([torch.full((len(each.ids),), 1 / len(each.ids)) for each in some], batch_first=True)
        yield Batch(ids.to(device), weights.to(device), 1)


def _heads(model: Any, tags: Tags, documents: Sequence[Document]) -> Iterator[tuple[torch.Tensor, Words]]:
    """What the heads say of some documents, batch after batch: of intents [rows, intents], and of words."""
    intents = len(tags.all_intents)
    for batch in in_order(documents, next(model.parameters()).device):
        read = Unpacked.of(batch, len(tags.names))
        logits = logits_of(model, read)
        yield pooled(logits, read)[:, :intents], Words.of(logits, read, intents)


@torch.no_grad()
def predicted(model: Any, tags: Tags, documents: Sequence[Document]) -> Iterator[tuple[int, list[int]]]:
    """The likeliest intent and word labels of some documents, in their order; of words whose label was asked for.

    The model is in one number format: a trained one is merged first.
    """
    intents = len(tags.all_intents)
    for of_intents, words in _heads(model, tags, documents):
        firsts = of_intents.argmax(-1).tolist()
        for first, own in zip(firsts, _said(model, words), strict=True):
            yield first, [intents + label for label in own]


def _said(model: Any, words: Words) -> list[list[int]]:
    if _has_crf(model):
        return likeliest(words.emissions, words.lengths, model.crf(len(words.lengths)))
    found = words.emissions.argmax(-1).tolist()
    return [own[:length] for own, length in zip(found, words.lengths.tolist(), strict=True)]


@torch.no_grad()
def losses(model: Any, tags: Tags, documents: Sequence[Document]) -> Array:
    """The loss of each document in nats, [documents]."""
    loss = TaggerLoss(len(tags.all_intents), len(tags.names))
    batches = in_order(documents, next(model.parameters()).device)
    return _together([loss(model, batch) for batch in batches])


@torch.no_grad()
def sorted_scores(model: Any, tags: Tags, documents: Sequence[Document]) -> Array:
    """Logarithms of the highest probabilities of intents, then of word labels in the mean over words; highest first.

    Shokri et al. (2017) attack a classifier by its sorted scores: a model is surer of what it has seen. The shape is
    [documents, scores]. A CRF has no part in them.
    """
    found = []
    for of_intents, words in _heads(model, tags, documents):
        of_words = torch.where(words.there[..., None], _highest(words.emissions), 0).sum(1)
        means = of_words / words.lengths.clamp(min=1)[:, None]
        found.append(torch.cat([_highest(of_intents), means], 1).clamp(min=_LEAST).log())
    return _together(found)


def _highest(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(-1).topk(min(HIGHEST, logits.shape[-1])).values


def _together(batches: list[torch.Tensor]) -> Array:
    return np.asarray(torch.cat(batches).double().cpu().numpy())
