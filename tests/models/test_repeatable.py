"""A GPU is held to repeatable kernels, and a CPU is left as it is."""

from collections.abc import Iterator

import pytest
import torch

from rayprivacy.models.repeatable import repeatable


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("name", "held"), [("cpu", False), ("cuda", True)])
def test_only_a_gpu_is_held(name: str, held: bool) -> None:
    device = torch.device(name)
    assert repeatable(device) == device
    assert torch.are_deterministic_algorithms_enabled() is held
