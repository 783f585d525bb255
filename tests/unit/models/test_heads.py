"""Logits of final states are those that the model computes, whatever it does with its head; or the base is refused."""

import pytest
import torch
from tiny_families import tiny_model

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.language import documents_nll, public_perplexity
from rayprivacy.methods.seqpate.students import adapted_model
from rayprivacy.models.adapters import HeadAdapter, public_basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import encode
from rayprivacy.models.heads import logits_of

pytestmark = pytest.mark.usefixtures("one_thread")
SHARP = 20  # times the weights of a head: random ones are so small that a cap does not show
SCALED = {"llama": 1.0, "granite": 0.25, "cohere": 0.5, "falcon_h1": 0.3}  # by what the model multiplies its logits
MORE = ("gemma2", "phi", "gptj", "roberta", "bert")  # a cap, biases, layers before the head
VOCABULARY = 400


def _config(family):
    return {
        "granite": {"logits_scaling": 4.0},
        "cohere": {"logit_scale": 0.5},
        "falcon_h1": {"lm_head_multiplier": 0.3},
        "gemma2": {"final_logit_softcapping": 5.0},
    }.get(family, {})


def _backbone(family, like, dtype=torch.float32):
    model = tiny_model(family, VOCABULARY, **_config(family)).to(dtype).requires_grad_(False)
    head = model.get_output_embeddings()
    head.weight *= SHARP
    if head.bias is not None:
        head.bias += torch.linspace(0, 3, VOCABULARY)
    return Backbone(like.tokenizer, like.start, like.end, model=model)


@pytest.mark.parametrize("family", SCALED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_product_of_states_and_head_is_what_the_model_computes(family, dtype, tiny_backbone):
    base = _backbone(family, tiny_backbone, dtype)
    assert base.head_scale == pytest.approx(SCALED[family], rel=2e-3)
    assert (base.head_scale == 1) is (family == "llama"), "of a plain head no bit changes"
    ids = torch.tensor([base.prefix("the cat sat on my mat and you like soup")])
    states = base.model.base_model(input_ids=ids).last_hidden_state
    own = base.model(input_ids=ids).logits
    close = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(states.float() @ base.head.T, own.float(), **close)


@pytest.mark.parametrize("family", MORE)
def test_a_base_that_does_more_is_refused_where_the_product_is_needed(family, tiny_backbone):
    base = _backbone(family, tiny_backbone)
    with pytest.raises(ConfigError, match=r"model\.base is a .* whose logits are not the product"):
        _ = base.head
    assert base.vocabulary == VOCABULARY
    ids = torch.tensor([base.prefix("the cat sat on my mat")])
    if family not in ("bert", "roberta"):  # whose `forward` has two layers that read states
        states = base.model.base_model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(logits_of(base.model, states), base.model(input_ids=ids).logits)


@pytest.mark.parametrize("family", [*SCALED, *MORE[:3], "mamba", "bloom", "opt"])
def test_perplexity_is_that_of_the_model_itself(family, tiny_backbone, public_sentences):
    base = _backbone(family, tiny_backbone)
    documents = [base.document(text, 62) for text in public_sentences]
    total = tokens = 0.0
    for ids in map(torch.tensor, documents):
        total += base.model(input_ids=ids[None], labels=ids[None]).loss.item() * (len(ids) - 1)
        tokens += len(ids) - 1
    found = documents_nll(base, documents)
    assert found == (pytest.approx(total, rel=1e-4), tokens)
    expected = torch.tensor(total / tokens).exp().item()
    assert public_perplexity(base, list(public_sentences)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("family", ["llama", "granite"])
def test_a_student_that_is_saved_scales_its_logits_once(family, tiny_backbone, public_sentences):
    base = _backbone(family, tiny_backbone)
    documents = [base.document(text, 30) for text in public_sentences]
    rows = encode(base, documents, 64, len(documents))
    basis = public_basis(base, rows.examples, rank=8, shortlist=100)
    adapter = HeadAdapter(basis, torch.randn(8, 8, generator=torch.Generator().manual_seed(2)))
    ids = torch.tensor([documents[0]])
    states = base.model.base_model(input_ids=ids).last_hidden_state
    found = adapted_model(base, adapter)(input_ids=ids).logits
    torch.testing.assert_close(found, adapter(states) @ base.head.T, rtol=1e-3, atol=1e-3)
