"""The linear-chain CRF against sums over all sequences, and what rows have to do with each other: nothing."""

from itertools import product

import pytest
import torch
from torch import Tensor

from rayprivacy.tagging.crf import Crf, likeliest, negative_log_likelihood

LABELS, WORDS = 3, 4
LENGTHS = torch.tensor([4, 2, 1, 0])


@pytest.fixture
def given() -> tuple[Tensor, Tensor, Tensor]:
    """Emissions, labels and transitions of four rows."""
    random = torch.Generator().manual_seed(3)
    crf = Crf(LABELS)
    crf.transitions.weight.data = torch.randn(LABELS + 1, LABELS, generator=random) * 2
    emissions = torch.randn(len(LENGTHS), WORDS, LABELS, generator=random) * 2
    return emissions, torch.randint(0, LABELS, (len(LENGTHS), WORDS), generator=random), crf(len(LENGTHS)).detach()


def _score(emissions: Tensor, path: tuple[int, ...], transitions: Tensor) -> Tensor:
    before = (LABELS, *path)
    return sum(
        (emissions[at, label] + transitions[before[at], label] for at, label in enumerate(path)), torch.zeros(())
    )


def test_it_is_the_definition_summed_over_all_sequences(given: tuple[Tensor, Tensor, Tensor]) -> None:
    emissions, labels, transitions = given
    found = negative_log_likelihood(emissions, labels, LENGTHS, transitions)
    paths = likeliest(emissions, LENGTHS, transitions)
    for row, length in enumerate(LENGTHS.tolist()):
        every = {
            path: _score(emissions[row].double(), path, transitions[row].double())
            for path in product(range(LABELS), repeat=length)
        }
        partition = torch.stack(list(every.values())).logsumexp(0)
        assert float(found[row]) == pytest.approx(
            float(partition - every[tuple(labels[row, :length].tolist())]), rel=1e-5
        )
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


def test_a_row_without_words_has_no_loss_and_no_gradient(given: tuple[Tensor, Tensor, Tensor]) -> None:
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
