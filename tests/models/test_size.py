"""The size of a base, read from its files, is that of the loaded model."""

from pathlib import Path

import pytest

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.size import ModelSize, size_of


def test_a_directory_tells_its_size(tiny_base: Path, tiny_backbone: Backbone) -> None:
    parameters = sum(weight.numel() for weight in tiny_backbone.model.parameters())
    assert size_of(str(tiny_base)) == ModelSize(parameters, *tiny_backbone.head.shape)


def test_a_known_name_needs_no_file() -> None:
    found = size_of("smollm2-135m")
    assert found is not None
    layers = 30 * (576 * (576 + 2 * 192 + 576) + 3 * 576 * 1536 + 2 * 576)
    assert found == ModelSize(49152 * 576 + layers + 576, 49152, 576)


@pytest.mark.parametrize("config", [None, "{", "[]", "{}", '{"hidden_size": 8, "vocab_size": 9}'])
def test_what_is_not_known_is_none(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert size_of(str(tmp_path)) is None
    assert size_of("some/model-of-a-hub") is None


def test_a_damaged_file_is_none(tiny_base: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_base / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"short")
    assert size_of(str(tmp_path)) is None
