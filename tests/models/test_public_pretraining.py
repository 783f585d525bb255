"""Training without privacy: guarded against a bad batch; of all weights on public text, to the bit the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rayprivacy.core.console import nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone, load_backbone, model_digest
from rayprivacy.models.pretraining import Objective, fit, pretrained
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig, PretrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = PretrainConfig(source="public", steps=12, batch=4, max_tokens=32, learning_rate=3e-3)


def test_all_weights_learn_and_equal_inputs_give_equal_bits(
    tiny_backbone: Backbone, public_sentences: list[str]
) -> None:
    before, told = tiny_backbone.digest, list[int]()
    model, figures = pretrained(tiny_backbone, public_sentences * 4, CONFIG, 8, told.append)
    assert told == list(range(1, 13))
    assert figures["loss_after"] < figures["loss_before"] - 0.3
    was = tiny_backbone.model.state_dict()
    assert all(not tensor.equal(was[name]) for name, tensor in model.state_dict().items())
    again, _ = pretrained(tiny_backbone, public_sentences * 4, CONFIG, 8, nobody)
    assert model_digest(again) == model_digest(model)
    assert model_digest(tiny_backbone.model) == before


def test_a_text_that_goes_on_does_not_teach_to_end(tiny_backbone: Backbone, public_sentences: list[str]) -> None:
    whole = [tiny_backbone.document(text, 60) for text in public_sentences * 4]
    cut = [[token for token in document if token != tiny_backbone.end] for document in whole]
    config = CONFIG.model_copy(update={"steps": 30, "max_tokens": 64})

    def ends(documents: list[list[int]]) -> float:
        """How likely the end is behind the last token of a text."""
        model, _ = pretrained(tiny_backbone, documents, config, 8, nobody)
        with torch.no_grad():
            logits = [model(input_ids=torch.tensor([document])).logits[0, -1] for document in cut[:20]]
        return float(torch.stack(logits).softmax(-1)[:, tiny_backbone.end].mean())

    assert ends(whole) > 0.3
    assert ends(cut) < 0.01


def test_a_kept_model_is_the_same_input_wherever_it_lies_and_rows_in_a_call_change_rounding_alone(
    tiny_backbone: Backbone, public_sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is repeated in another directory is served from the ledger."""
    once = CONFIG.model_copy(update={"steps": 1})
    one, _ = pretrained(tiny_backbone, public_sentences, once, 8, nobody)
    for name in ("here", "there"):
        save_model(one, tiny_backbone.tokenizer, tmp_path / name, "release", "A test.")
    bases = [ModelConfig(base=str(tmp_path / name), dtype="float32") for name in ("here", "there")]
    assert len({tiny_backbone.digest, model_digest(one), *(load_backbone(base).digest for base in bases)}) == 2
    monkeypatch.setattr("rayprivacy.models.pretraining.CALL_TOKENS", 32)
    other, _ = pretrained(tiny_backbone, public_sentences, once, 8, nobody)
    moved = [(a - b).abs().max() for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)]
    assert max(moved) < 1e-4  # a step of AdamW moves a weight by the learning rate


def test_a_base_in_bfloat16_learns_although_its_numbers_are_far_apart(tiny_base: Path, public_sentences: Any) -> None:
    base = load_backbone(ModelConfig(base=str(tiny_base), dtype="bfloat16"))
    model, figures = pretrained(base, public_sentences * 4, CONFIG, 8, nobody)
    assert model.dtype == torch.bfloat16
    assert figures["loss_after"] < figures["loss_before"] - 0.3


def test_settings_that_cannot_work_are_one_sentence(tiny_backbone: Backbone, public_sentences: list[str]) -> None:
    for change, said in (
        ({"max_tokens": 1024}, r"pretrain\.max_tokens is 1024, and the base model takes 512: lower it\."),
        ({"learning_rate": 1e30}, r"pretrain\.learning_rate is 1e\+30, and training diverges: lower it\."),
    ):
        with pytest.raises(ConfigError, match=said):
            pretrained(tiny_backbone, public_sentences, CONFIG.model_copy(update=change), 8, nobody)


RATE, STEPS = 0.01, 10


def _loss(model: Any, slopes: Sequence[float]) -> torch.Tensor:
    return model.weight.sum() * sum(slopes)


def _moved(slopes: Sequence[float], guarded_steps: int | None) -> float:
    """How far a weight moves against slopes of its loss, a step each."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    objective = Objective(_loss, len, at_once=1)
    figures = fit(model, objective, [[slope] for slope in slopes], [1.0], RATE, nobody, "block", guarded_steps)
    assert figures["loss_before"] == 0
    return -model.weight.item()


def test_the_learning_rate_falls_linearly_towards_zero() -> None:
    assert _moved([1.0] * STEPS, None) == pytest.approx(RATE * STEPS, rel=0.01)
    assert _moved([1.0] * STEPS, STEPS) == pytest.approx(RATE * (STEPS + 1) / 2, rel=0.01)


def test_a_batch_of_a_large_gradient_counts_for_no_more_than_one_of_norm_1() -> None:
    spike = [1.0, 1.0, 1000.0, *[1.0] * (STEPS - 3)]
    assert _moved(spike, STEPS) == pytest.approx(_moved([1.0] * STEPS, STEPS), rel=1e-4)
    assert _moved(spike, None) < 0.8 * _moved([1.0] * STEPS, None), "without the guard the steps behind it are short"
