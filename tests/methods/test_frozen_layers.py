"""The frozen layers' outputs that a table of trainings keeps: same gradients, to the bit, and less work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import trainable

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two layers, the second with LoRA that is no longer at its start, where its gradients are zero."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    made = trainable(load_backbone(ModelConfig(base=str(tiny_base), dtype="float32")), AdapterConfig(layers=1, rank=2))
    for parameter in made.parameters():
        if parameter.requires_grad:
            torch.nn.init.constant_(parameter, 0.01)
    return made


def _batch(first: int) -> Any:
    ids = torch.arange(first, first + 9, dtype=torch.int32).numpy()
    (batch,) = physical_batches([[Document(ids, 1)]], 16, pad=0)
    return batch


def _gradients(model: Any, batch: Any, losses: Callable[[Any, Any], torch.Tensor]) -> list[torch.Tensor]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(losses(model, batch).sum(), trained))


@pytest.mark.exhaustive
def test_gradients_are_the_same_and_frozen_layers_run_once_for_each_batch(model: Any) -> None:
    from frozen_layers import FrozenLayers

    first, second = _batch(5), _batch(50)
    expected = [_gradients(model, batch, row_losses) for batch in (first, second)]
    assert any(gradient.any() for gradient in expected[0])
    frozen = FrozenLayers(1)
    losses = frozen.watching(row_losses)
    with frozen.of(model):
        found = [_gradients(model, batch, losses) for batch in (first, second, first)]
    for before, after in zip([*expected, expected[0]], found, strict=True):
        assert all(map(torch.equal, before, after))

    _break(model)
    with frozen.of(model):
        assert all(map(torch.equal, expected[0], _gradients(model, first, losses)))
        assert not torch.isfinite(_gradients(model, _batch(99), losses)[0]).all()
    assert not torch.isfinite(_gradients(model, first, row_losses)[0]).all(), "the layer still takes what is kept"


def _break(model: Any) -> None:
    with torch.no_grad():
        model.get_base_model().base_model.layers[0].mlp.up_proj.weight.fill_(float("nan"))
