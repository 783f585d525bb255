"""A model is made ready for its engine when the first text is to be written, once for all files of that time."""

import pytest

from rayprivacy.generation import writing
from rayprivacy.generation.settings import ONNX, TRANSFORMERS
from rayprivacy.generation.writing import made_ready


def test_a_model_is_converted_when_it_is_first_asked_for_and_once(tiny_base, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    converted, real = [], writing.convert
    monkeypatch.setattr(writing, "convert", lambda *given: converted.append(1) or real(*given))
    with made_ready(ONNX, tiny_base, tmp_path):
        assert list(tmp_path.iterdir()) == []
    with made_ready(ONNX, tiny_base, tmp_path) as ready:
        assert [ready(), ready()] == [*tmp_path.iterdir()] * 2
    assert list(tmp_path.iterdir()) == []
    assert len(converted) == 1
    with pytest.raises(KeyError), made_ready(ONNX, tiny_base, tmp_path) as ready:
        raise KeyError(ready())
    assert len([*tmp_path.iterdir()]) == 1, "for the next try"


def test_transformers_read_the_model_itself(tiny_base, tmp_path):
    with made_ready(TRANSFORMERS, tiny_base, tmp_path) as ready:
        assert ready() == tiny_base
    assert tiny_base.is_dir()
