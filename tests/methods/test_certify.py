"""Figures beside a certificate are those of its corpus."""

import json
from pathlib import Path

import pytest

from rayprivacy.runs.certify import MEASURED, _forget_another_corpus

KEPT = ("certificate.json", "model.safetensors", "recipe.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (*MEASURED, *KEPT):
        (tmp_path / name).write_text("{}")
    (tmp_path / "plots").mkdir()
    (tmp_path / "certificate.json").write_text(json.dumps({"corpus_digest": "a"}))
    return tmp_path


def test_figures_of_another_corpus_are_deleted(root: Path) -> None:
    _forget_another_corpus(root, {"corpus_digest": "b"})
    assert sorted(path.name for path in root.iterdir()) == sorted(KEPT)


def test_figures_of_the_same_corpus_stay(root: Path) -> None:
    _forget_another_corpus(root, {"corpus_digest": "a"})
    assert {path.name for path in root.iterdir()} == {*MEASURED, *KEPT, "plots"}


def test_a_first_certificate_has_nothing_to_forget(tmp_path: Path) -> None:
    _forget_another_corpus(tmp_path, {"corpus_digest": "a"})
    assert list(tmp_path.iterdir()) == []
