"""What an audit raises quotes no private row: models and tokenizers put the text they failed on into their errors."""

from pathlib import Path
from typing import Any

import pytest

from rayprivacy.auditing import directory
from rayprivacy.core.errors import RayPrivacyError


def test_an_error_of_other_code_leaves_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(root: Path) -> Any:
        raise ValueError("the private row of user-7")

    monkeypatch.setattr(directory, "read_claim", fails)
    audit: Any = type("Audit", (), {"root": Path()})()
    with pytest.raises(RayPrivacyError, match="the audit stopped with ValueError") as caught:
        directory.audit_run(audit)
    assert "user-7" not in str(caught.value)
    assert caught.value.__context__ is None
