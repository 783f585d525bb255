"""What teachers are asked in several files."""

import pytest
import torch

from rayprivacy.models.features import Queries


@pytest.fixture(scope="session")
def asked():
    """Queries at some states: eight candidates each, and about two thirds of them allowed."""

    def made(hidden, context):
        draw = torch.Generator().manual_seed(5)
        candidates = torch.stack([torch.randperm(400, generator=draw)[:8] for _ in hidden])
        allowed = torch.rand(candidates.shape, generator=draw) < 0.7
        allowed[:, 0] = True
        return Queries(hidden, candidates, allowed, allowed / allowed.sum(1, keepdim=True), context)

    return made
