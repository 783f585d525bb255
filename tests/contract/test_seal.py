"""Who may make a Released value and who may draw privacy noise: read off the source."""

from pathlib import Path

import pytest

import rayprivacy
from rayprivacy.core.private import Released

PACKAGE = Path(rayprivacy.__file__).parent


def _files_with(word: str) -> set[str]:
    return {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if word in path.read_text()}


def test_only_the_release_layer_touches_the_seal() -> None:
    users = _files_with("RELEASE_SEAL")
    assert "release/gate.py" in users
    assert {name for name in users if not name.startswith("release/")} == {"core/private.py"}


def test_only_the_release_layer_imports_opendp() -> None:
    assert _files_with("import opendp") | _files_with("from opendp") == {"release/noise.py"}


def test_stored_data_never_chooses_code() -> None:
    assert _files_with("from_named_tuple(") == set()
    assert {
        name for name in _files_with("import pickle") if name.startswith(("accounting", "ledger", "release"))
    } == set()


def test_a_forged_seal_is_refused() -> None:
    with pytest.raises(TypeError, match="release gate"):
        Released("text", "run", object())
