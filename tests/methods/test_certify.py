"""What stands beside a model or a certificate is of its corpus."""

import json
from pathlib import Path

import pytest

from rayprivacy.runs.directory import MEASURED, forget_another_corpus

SAID = ("README.md", "certificate.md", "certificate.json")
KEPT = ("model.safetensors", "recipe.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (*MEASURED, *SAID, *KEPT):
        (tmp_path / name).write_text("{}")
    (tmp_path / "plots").mkdir()
    (tmp_path / "certificate.json").write_text(json.dumps({"corpus_digest": "a"}))
    return tmp_path


def test_figures_of_another_corpus_are_deleted(root: Path) -> None:
    """Its certificate and cards too, so that no report and no audit takes them for those of what is written now."""
    forget_another_corpus(root, "b")
    assert sorted(path.name for path in root.iterdir()) == sorted(KEPT)


def test_figures_of_the_same_corpus_stay(root: Path) -> None:
    forget_another_corpus(root, "a")
    assert {path.name for path in root.iterdir()} == {*MEASURED, *SAID, *KEPT, "plots"}


def test_a_first_certificate_has_nothing_to_forget(tmp_path: Path) -> None:
    forget_another_corpus(tmp_path, "a")
    assert list(tmp_path.iterdir()) == []
