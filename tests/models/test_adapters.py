"""Head adapters: the fold is exact, the bases are what the docstring says, and a saved student is the student."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rayprivacy.methods.seqpate.students import adapted_model
from rayprivacy.models.adapters import Basis, HeadAdapter, public_basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features
from rayprivacy.models.save import save_model


def _random(basis: Basis, rank_in: int, rank_out: int, scale: float = 0.5) -> HeadAdapter:
    draw = torch.Generator().manual_seed(rank_in * 1000 + rank_out)
    return HeadAdapter(basis, torch.randn(rank_in, rank_out, generator=draw) * scale)


def _logits(model: object, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]  # type: ignore[operator]


@pytest.mark.parametrize(("rank_in", "rank_out"), [(1, 1), (3, 16), (16, 3), (16, 16)])
def test_the_folded_head_gives_the_adapters_logits(
    tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis, rank_in: int, rank_out: int
) -> None:
    adapter = _random(tiny_basis, rank_in, rank_out)
    adapted = adapter(tiny_features.hidden) @ tiny_backbone.head.T
    folded = tiny_features.hidden.float() @ adapter.fold(tiny_backbone.head).T
    plain = tiny_features.hidden.float() @ tiny_backbone.head.T
    assert (adapted - folded).abs().max() < 1e-4
    assert (adapted - plain).abs().max() > 0.01, "the adapter does something"
    zeros = HeadAdapter.zeros(tiny_basis, rank_in, rank_out)
    assert torch.equal(zeros(tiny_features.hidden), tiny_features.hidden.float())
    assert torch.equal(zeros.fold(tiny_backbone.head), tiny_backbone.head)


def test_the_adapter_is_the_formula(tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis) -> None:
    adapter = _random(tiny_basis, 4, 5)
    h = tiny_features.hidden[7].float()
    P, R, S = tiny_basis.inward[:, :4], adapter.matrix, tiny_basis.outward[:5]
    expected = tiny_backbone.head @ (h + S.T @ (R.T @ (P.T @ h)))
    assert (expected - tiny_backbone.head @ adapter(tiny_features.hidden[7:8])[0]).abs().max() < 1e-4


def test_bases_have_their_shapes_and_properties(
    tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis
) -> None:
    assert tiny_basis.inward.shape == (64, 16)
    assert tiny_basis.outward.shape == (16, 64)
    assert (tiny_basis.outward @ tiny_basis.outward.T - torch.eye(16)).abs().max() < 1e-4
    white = tiny_features.hidden.float() @ tiny_basis.inward
    assert (white.T @ white / len(white) - torch.eye(16)).abs().max() < 1e-3
    few = Features(tiny_features.hidden[:9], tiny_features.targets[:9])
    assert public_basis(tiny_backbone, few, rank=1000, shortlist=20).inward.shape == (64, 9), "what the text spans"


def test_outward_rows_span_the_strongest_directions_of_the_head(
    tiny_backbone: Backbone, tiny_features: Features, tiny_basis: Basis
) -> None:
    logits = tiny_features.hidden.float() @ tiny_backbone.head.T
    frequency = torch.softmax(logits, -1).mean(0)
    centred = tiny_backbone.head - frequency @ tiny_backbone.head
    spread = ((centred @ tiny_basis.outward.T) ** 2 * frequency[:, None]).sum(0)
    assert (spread.diff() <= 1e-5).all(), "strongest first"
    strongest = torch.linalg.svdvals(centred * frequency.sqrt()[:, None])[:16] ** 2
    assert torch.allclose(spread, strongest, rtol=1e-2)


@pytest.mark.parametrize("shortlist", [2, 10, 400])
def test_the_shortlist_is_sorted_unique_and_holds_start_and_end(
    tiny_backbone: Backbone, tiny_features: Features, shortlist: int
) -> None:
    tokens = public_basis(tiny_backbone, tiny_features, rank=4, shortlist=shortlist).shortlist
    assert tokens.shape == (shortlist,)
    assert (tokens.diff() > 0).all()
    assert {tiny_backbone.start, tiny_backbone.end} <= set(tokens.tolist())


def test_a_saved_student_loads_the_ordinary_way_with_the_same_logits(
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
    save_model(student, tiny_backbone.tokenizer, out, "seqpate-test", "Trained in a test.")
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(_logits(loaded, ids), expected)
    assert not loaded.config.tie_word_embeddings
    assert torch.equal(loaded.lm_head.weight, student.lm_head.weight)
    assert torch.equal(loaded.model.embed_tokens.weight, tiny_backbone.model.model.embed_tokens.weight)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
    assert AutoTokenizer.from_pretrained(out).get_vocab() == tiny_backbone.tokenizer.get_vocab()
    assert "seqpate-test" in (out / "README.md").read_text()
    assert torch.equal(_logits(tiny_backbone.model, ids), before)
    assert tiny_backbone.model.config.tie_word_embeddings


def test_saving_replaces_an_older_folder_and_leaves_no_scratch(
    tiny_backbone: Backbone, tiny_basis: Basis, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "stale.bin").write_bytes(b"stale")
    (tmp_path / ".model.tmp").mkdir()
    (tmp_path / ".model.tmp" / "half").write_bytes(b"half")
    student = adapted_model(tiny_backbone, HeadAdapter.zeros(tiny_basis, 2, 2))
    save_model(student, tiny_backbone.tokenizer, out, "r", "Trained in a test.")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not (out / "stale.bin").exists()
    assert not (out / "half").exists()
