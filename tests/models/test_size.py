"""The size of a base, read from its files, is that of the loaded model; and so is what a tagger uses of it."""

import math
from pathlib import Path

import pytest

from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.size import UNKNOWN_SIZE, ModelSize, size_of
from rayprivacy.tagging.settings import TaggerConfig, tagger_size

WHOLE = '{"hidden_size": 8, "vocab_size": 9, "num_layers": 1}'


def test_a_directory_tells_its_size(tiny_base: Path, tiny_backbone: Backbone) -> None:
    parameters = sum(weight.numel() for weight in tiny_backbone.model.parameters())
    assert size_of(str(tiny_base)) == ModelSize(parameters, *tiny_backbone.head.shape, layers=2)
    layers = 30 * (576 * (576 + 2 * 192 + 576) + 3 * 576 * 1536 + 2 * 576)
    assert size_of("smollm2-135m") == ModelSize(49152 * 576 + layers + 576, 49152, 576, 30), "a name needs no file"


@pytest.mark.parametrize("config", [None, "{", "[]", '{"hidden_size": 8}', WHOLE])
def test_what_is_not_known_has_no_size(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
        (tmp_path / "model.safetensors").write_bytes(b"short")
    assert size_of(str(tmp_path)) is UNKNOWN_SIZE
    assert size_of("some/model-of-a-hub") is UNKNOWN_SIZE
    assert math.isnan(tagger_size(TaggerConfig(base="some/model-of-a-hub"), heads_alone=False).forward(1))


@pytest.mark.parametrize("layers", [None, 1, 2])
def test_a_tagger_is_as_large_as_its_layers_and_heads(tiny_base: Path, layers: int | None) -> None:
    names = {"intents": ("eat",), "slots": ("food", "place")}
    backbone = load_backbone(TaggerConfig(base=str(tiny_base), layers=layers, dtype="float32", **names))
    weights = {name: each.numel() for name, each in backbone.model.named_parameters() if each.dim() == 2}
    computed = sum(count for name, count in weights.items() if "embed" not in name)
    config = TaggerConfig(base=str(tiny_base), layers=layers, **names)
    whole, heads = (tagger_size(config, heads_alone=alone) for alone in (False, True))
    assert whole.parameters == pytest.approx(computed, rel=0.01), "without norms and biases"
    assert whole.forward(10) == heads.forward(10)
    assert whole.trained(10) == 3 * whole.forward(10)
    head = 7 * 64
    assert heads.trained(10) == pytest.approx(heads.forward(10) + 2 * 2 * head * 10)
