"""The cross-entropy under the head is torch's, and work in threads is that of a plain loop, to the bit."""

import copy
import dataclasses
from collections.abc import Iterator

import pytest
import torch

from rayprivacy.evaluation.language import row_nll
from rayprivacy.models.adapters import BLOCK, PIECES, summed_cross_entropy
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import encode, side_by_side


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """What a process has that Ray did not start: no piece may notice."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(2)


@pytest.mark.parametrize("positions", [0, 1, BLOCK + 3])
@pytest.mark.parametrize("vocabulary", [PIECES - 1, 101])
def test_the_loss_and_its_gradient_are_those_of_torch(draw: torch.Generator, positions: int, vocabulary: int) -> None:
    head = torch.randn(vocabulary, 16, generator=draw)
    states = torch.randn(positions, 16, generator=draw).mul_(5).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), generator=draw)
    wanted = torch.nn.functional.cross_entropy(states.double() @ head.double().T, targets, reduction="sum")
    (3 * wanted).backward()
    exact, states.grad = states.grad, None
    bits = set()
    for threads in (1, 2, 3):
        loss = summed_cross_entropy(states, targets, head, threads)
        (3 * loss).backward()
        assert torch.allclose(loss.double(), wanted, rtol=1e-5, atol=1e-6)
        assert torch.allclose(states.grad, exact, rtol=1e-4, atol=1e-4)
        bits.add((loss.detach().numpy().tobytes(), states.grad.numpy().tobytes()))
        states.grad = None
    assert len(bits) == 1


def test_pieces_come_back_in_order_and_the_setting_of_threads_stays() -> None:
    before = torch.get_num_threads()
    for threads in (1, 2):
        assert side_by_side(lambda piece: piece * 2, range(20), threads) == [2 * piece for piece in range(20)]
        assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda piece: 1 / piece, [1, 0], 2)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_each_piece_has_one_thread_of_torch(threads: int) -> None:
    assert side_by_side(lambda _: torch.get_num_threads(), range(4), threads) == [1] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_and_losses_of_rows_are_those_of_one_thread(
    tiny_backbone: Backbone, public_sentences: list[str], dtype: torch.dtype
) -> None:
    model = tiny_backbone.model
    backbone = dataclasses.replace(tiny_backbone, model=copy.deepcopy(model).to(dtype))
    documents = [backbone.document(text, 30) for text in public_sentences * 3]
    bits = set()
    for threads in (1, 2, 3):
        rows = encode(backbone, documents, 32, len(documents), threads=threads)
        nll = row_nll(rows.hidden, rows, backbone.head, threads)
        assert float(nll.sum()) > 0
        assert not encode(backbone, [[1, 2, 3]], 32, 1, threads=threads).hidden[0, 8:].any()
        bits.add((rows.hidden.view(torch.int16).numpy().tobytes(), nll.numpy().tobytes()))
    assert len(bits) == 1
