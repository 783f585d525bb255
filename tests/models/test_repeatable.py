"""A GPU is held to repeatable kernels, and a CPU is left as it is."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rayprivacy.dpsgd import worker
from rayprivacy.models.trainable import repeatable


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


class _ThereError(Exception):
    """The model is moved to its device."""


def test_a_worker_of_dp_sgd_holds_its_gpu_before_the_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(_device: torch.device) -> None:
        raise _ThereError

    monkeypatch.setattr(worker, "get_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(worker, "trainable", lambda *_: SimpleNamespace(to=moved))
    job: Any = SimpleNamespace(model=SimpleNamespace(dtype="float32"), adapter=None)
    unused: Any = None
    with pytest.raises(_ThereError):
        worker._engine(job, unused, unused, unused)
    assert torch.are_deterministic_algorithms_enabled()
