"""The number format is measured, kept, and measured again where the answer may be another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rayprivacy.models import backbone
from rayprivacy.models.backbone import FORMATS, fast_format, load_backbone, speed
from rayprivacy.models.settings import ModelConfig

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rayprivacy" / "number-format"


def _speeds(monkeypatch: pytest.MonkeyPatch, bfloat16: float, float32: float) -> None:
    monkeypatch.setattr(backbone, "speed", {"bfloat16": bfloat16, "float32": float32}.__getitem__)


def test_products_are_really_computed() -> None:
    assert all(1e8 < speed(name) < 1e14 for name in FORMATS)


@pytest.mark.parametrize(("bfloat16", "fast"), [(6.0, "bfloat16"), (1.1, "float32"), (0.1, "float32")])
def test_bfloat16_must_be_clearly_faster(bfloat16: float, fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _speeds(monkeypatch, bfloat16, 1.0)
    assert fast_format() == fast


def test_the_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _speeds(monkeypatch, 6.0, 1.0)
    assert fast_format() == "bfloat16"
    _speeds(monkeypatch, 0.1, 1.0)
    assert fast_format() == "bfloat16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")  # another machine
    assert fast_format() == "float32"


def test_a_damaged_cache_is_measured_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _speeds(monkeypatch, 6.0, 1.0)
    fast_format()
    next(cache.iterdir()).write_bytes(b"\xff8")
    assert fast_format() == "bfloat16"
    cache.parent.joinpath("models").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "models"))  # a home that cannot be written to
    assert fast_format() == "bfloat16"


def test_without_instructions_for_bfloat16_it_is_float32() -> None:
    code = "from rayprivacy.models.backbone import fast_format; print(fast_format())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | AVX2, capture_output=True, text=True)
    assert done.stdout.strip() == "float32", done.stderr


def test_a_base_that_no_run_reads_is_in_the_format_of_this_machine(
    tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _speeds(monkeypatch, 6.0, 1.0)
    assert load_backbone(ModelConfig(base=str(tiny_base))).model.dtype == torch.bfloat16
