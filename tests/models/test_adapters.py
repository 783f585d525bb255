"""Head adapters: exact folds, their bases, a saved student; and cross-entropy in threads, to the bit."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rayprivacy.evaluation.language import row_nll
from rayprivacy.methods.seqpate.students import adapted_model
from rayprivacy.models import adapters
from rayprivacy.models.adapters import Basis, HeadAdapter, public_basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, encode, side_by_side
from rayprivacy.models.save import save_model


def _random(basis: Basis, rank_in: int, rank_out: int) -> HeadAdapter:
    draw = torch.Generator().manual_seed(rank_in * 1000 + rank_out)
    return HeadAdapter(basis, torch.randn(rank_in, rank_out, generator=draw) * 0.5)


def _logits(model: object, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]  # type: ignore[operator]


@pytest.mark.parametrize(("rank_in", "rank_out"), [(1, 1), (3, 16), (16, 3)])
def test_the_folded_head_gives_the_logits_of_the_formula(
    tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis, rank_in: int, rank_out: int
) -> None:
    adapter = _random(tiny_basis, rank_in, rank_out)
    hidden, P, S = tiny_features.hidden.float(), tiny_basis.inward[:, :rank_in], tiny_basis.outward[:rank_out]
    adapted = adapter(hidden) @ tiny_backbone.head.T
    assert (adapted - hidden @ adapter.fold(tiny_backbone.head).T).abs().max() < 1e-4
    assert (adapted - (hidden + hidden @ P @ adapter.matrix @ S) @ tiny_backbone.head.T).abs().max() < 1e-4
    assert (adapted - hidden @ tiny_backbone.head.T).abs().max() > 0.01, "the adapter does something"
    zeros = HeadAdapter.zeros(tiny_basis, rank_in, rank_out)
    assert torch.equal(zeros(tiny_features.hidden), tiny_features.hidden.float())
    assert torch.equal(zeros.fold(tiny_backbone.head), tiny_backbone.head)


def test_bases_have_their_properties(tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis) -> None:
    assert (tiny_basis.outward @ tiny_basis.outward.T - torch.eye(16)).abs().max() < 1e-4
    white = tiny_features.hidden.float() @ tiny_basis.inward
    assert (white.T @ white / len(white) - torch.eye(16)).abs().max() < 1e-3
    few = Features(tiny_features.hidden[:9], tiny_features.targets[:9])
    assert public_basis(tiny_backbone, few, rank=1000, shortlist=20).inward.shape == (64, 9), "what the text spans"
    # Outward rows span the strongest directions of the head.
    logits = tiny_features.hidden.float() @ tiny_backbone.head.T
    frequency = torch.softmax(logits, -1).mean(0)
    centred = tiny_backbone.head - frequency @ tiny_backbone.head
    spread = ((centred @ tiny_basis.outward.T) ** 2 * frequency[:, None]).sum(0)
    assert (spread.diff() <= 1e-5).all(), "strongest first"
    strongest = torch.linalg.svdvals(centred * frequency.sqrt()[:, None])[:16] ** 2
    assert torch.allclose(spread, strongest, rtol=1e-2)

    for shortlist in (2, 10, 400):
        tokens = public_basis(tiny_backbone, tiny_features, rank=4, shortlist=shortlist).shortlist
        assert tokens.shape == (shortlist,)
        assert (tokens.diff() > 0).all()
        assert {tiny_backbone.start, tiny_backbone.end} <= set(tokens.tolist())


def test_a_saved_student_replaces_an_older_one_and_loads_the_same(
    tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis, tmp_path: Path
) -> None:
    adapter = _random(tiny_basis, 8, 16)
    ids = tiny_backbone.document("could you tell me the way to the market please", 40)
    before = _logits(tiny_backbone.model, ids)
    student = adapted_model(tiny_backbone, adapter)
    expected = _logits(student, ids)
    hidden = tiny_backbone.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    assert (expected - adapter(hidden) @ tiny_backbone.head.T).abs().max() < 1e-4
    out = tmp_path / "model"
    for name in ("model", ".model.tmp"):  # an older one, and one that was cut short
        (tmp_path / name).mkdir()
        (tmp_path / name / "stale.bin").touch()
    save_model(student, tiny_backbone.tokenizer, out, "seqpate-test", "Trained in a test.")
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(_logits(loaded, ids), expected)
    assert not loaded.config.tie_word_embeddings
    assert torch.equal(loaded.lm_head.weight, student.lm_head.weight)
    assert torch.equal(loaded.model.embed_tokens.weight, tiny_backbone.model.model.embed_tokens.weight)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not (out / "stale.bin").exists()
    assert AutoTokenizer.from_pretrained(out).get_vocab() == tiny_backbone.tokenizer.get_vocab()
    assert torch.equal(_logits(tiny_backbone.model, ids), before)
    assert tiny_backbone.model.config.tie_word_embeddings


@pytest.fixture
def two_threads() -> Iterator[None]:
    """What a process has that Ray did not start: no piece may notice."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("positions", [0, 1, adapters.BLOCK + 3])
@pytest.mark.parametrize("vocabulary", [adapters.PIECES - 1, 101])
def test_the_loss_and_its_gradient_are_those_of_torch(positions: int, vocabulary: int) -> None:
    draw = torch.Generator().manual_seed(2)
    head = torch.randn(vocabulary, 16, generator=draw)
    states = torch.randn(positions, 16, generator=draw).mul_(5).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), generator=draw)
    wanted = torch.nn.functional.cross_entropy(states.double() @ head.double().T, targets, reduction="sum")
    (3 * wanted).backward()
    exact, states.grad = states.grad, None
    bits = set()
    for threads in (1, 2, 3):
        loss = adapters.summed_cross_entropy(states, targets, head, threads)
        (3 * loss).backward()
        assert torch.allclose(loss.double(), wanted, rtol=1e-5, atol=1e-6)
        assert torch.allclose(states.grad, exact, rtol=1e-4, atol=1e-4)
        bits.add((loss.detach().numpy().tobytes(), states.grad.numpy().tobytes()))
        states.grad = None
    assert len(bits) == 1


@pytest.mark.usefixtures("two_threads")
def test_pieces_come_back_in_order_and_the_setting_of_threads_stays() -> None:
    before = torch.get_num_threads()
    for threads in (1, 2):
        assert side_by_side(lambda piece: piece * 2, range(20), threads) == [2 * piece for piece in range(20)]
        assert side_by_side(lambda _: torch.get_num_threads(), range(4), threads) == [1] * 4
        assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda piece: 1 / piece, [1, 0], 2)
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_and_losses_of_rows_are_those_of_one_thread(
    tiny_backbone: Backbone, public_sentences: list[str], dtype: torch.dtype
) -> None:
    model = tiny_backbone.model
    backbone = replace(tiny_backbone, model=copy.deepcopy(model).to(dtype))
    documents = [backbone.document(text, 30) for text in public_sentences * 3]
    bits = set()
    for threads in (1, 2, 3):
        rows = encode(backbone, documents, 32, len(documents), threads=threads)
        nll = row_nll(rows.hidden, rows, backbone.head, threads)
        assert float(nll.sum()) > 0
        assert not encode(backbone, [[1, 2, 3]], 32, 1, threads=threads).hidden[0, 8:].any()
        bits.add((rows.hidden.view(torch.int16).numpy().tobytes(), nll.numpy().tobytes()))
    assert len(bits) == 1
