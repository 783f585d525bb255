"""A linear-chain conditional random field on top of word labels: a score for each label that follows another.

    p(y | x) = exp(score(y, x)) / Z(x)      score(y, x) = sum_j emission[j, y_j] + transition[y_(j-1), y_j]

with a transition from "before the first word" for j = 0 (Lafferty, McCallum and Pereira, ICML 2001). Z, the sum over
all sequences of labels, is computed by the forward algorithm in log space, and the likeliest sequence by Viterbi.

Privacy argument. The transitions are the weight of an embedding that every row looks up for itself, so a row's gradient
is known by the rule for embeddings (`models.norms`), and is clipped with the rest of it. What a row computes has the
shape of the batch, and steps past a row's last word leave its state as it is: no bit depends on how many words the
other rows have.

What models with a CRF save, `transformers` alone loads as well (`AutoModelForTokenClassification`), without the CRF.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BertForTokenClassification, GPT2ForTokenClassification, LlamaForTokenClassification


class Crf(nn.Module):
    """The transitions between some labels."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.transitions = nn.Embedding(labels + 1, labels)  # the last row: to the first word

    def forward(self, rows: int) -> Tensor:
        """The transitions once for each row, float32 [rows, labels + 1, labels]."""
        every = torch.arange(self.labels + 1, device=self.transitions.weight.device)
        return cast(Tensor, self.transitions(every.expand(rows, -1).contiguous())).float()


def negative_log_likelihood(emissions: Tensor, labels: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    """-log p(labels | emissions) of each row in nats, float32 [rows]; 0 for a row without words.

    Of a row's emissions [rows, words, labels] and labels [rows, words] what lies behind its last word is not looked at;
    `lengths` are words of each row, and `transitions` [rows, labels + 1, labels] come from `Crf`.
    """
    return _log_partition(emissions, lengths, transitions) - _score(emissions, labels, lengths, transitions)


def _log_partition(emissions: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    """log Z by the forward algorithm; the emissions of a row without words count for nothing."""
    between = transitions[:, :-1]
    alpha = transitions[:, -1] + emissions[:, 0]
    for word in range(1, emissions.shape[1]):
        further = (alpha[:, :, None] + between).logsumexp(1) + emissions[:, word]
        alpha = torch.where((lengths > word)[:, None], further, alpha)
    return torch.where(lengths > 0, alpha.logsumexp(1), 0)


def _score(emissions: Tensor, labels: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    count = emissions.shape[2]
    there = torch.arange(emissions.shape[1], device=labels.device) < lengths[:, None]
    label = torch.where(there, labels, 0)
    before = torch.cat([torch.full_like(label[:, :1], count), label[:, :-1]], 1)
    steps = transitions.flatten(1).gather(1, before * count + label)
    emitted = emissions.gather(2, label[..., None]).squeeze(2)
    return torch.where(there, emitted + steps, 0).sum(1)


@torch.no_grad()
def likeliest(emissions: Tensor, lengths: Tensor, transitions: Tensor) -> list[list[int]]:
    """The likeliest labels of each row, by Viterbi."""
    best, come_from = transitions[:, -1] + emissions[:, 0], []
    for word in range(1, emissions.shape[1]):
        found, before = (best[:, :, None] + transitions[:, :-1]).max(1)
        there = (lengths > word)[:, None]
        best = torch.where(there, found + emissions[:, word], best)
        come_from.append(torch.where(there, before, torch.arange(emissions.shape[2], device=before.device)))
    label = best.argmax(1, keepdim=True)
    path = [label]
    for before in reversed(come_from):
        label = before.gather(1, label)
        path.append(label)
    labels: list[Any] = torch.cat(path[::-1], 1).tolist()
    return [row[:length] for row, length in zip(labels, lengths.tolist(), strict=True)]


class _WithCrf:
    """Adds the CRF of the word labels, whose number is in the configuration (`tagger.words`)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.crf = Crf(config.tagger["words"])
        self.post_init()  # type: ignore[attr-defined]


class BertForTokenClassificationWithCrf(_WithCrf, BertForTokenClassification):
    """A BERT with a CRF."""


class LlamaForTokenClassificationWithCrf(_WithCrf, LlamaForTokenClassification):
    """A Llama with a CRF."""


class GPT2ForTokenClassificationWithCrf(_WithCrf, GPT2ForTokenClassification):
    """A GPT-2 with a CRF."""


WITH_CRF = {
    "bert": BertForTokenClassificationWithCrf,
    "llama": LlamaForTokenClassificationWithCrf,
    "gpt2": GPT2ForTokenClassificationWithCrf,
}
