"""From released votes to what the student learns from them. All of it is post-processing of the release.

Mixing a vote with the student, (1 - lambda) p + lambda s, scales signal and noise alike, whether a teacher does it
before the noise or the student after it; so it is done here, where lambda can be changed without a new release.
"""

import torch

from rayprivacy.methods.seqpate.student_settings import StudentConfig
from rayprivacy.models.queries import Queries


def vote_targets(votes: torch.Tensor, queries: Queries, centred: bool, config: StudentConfig) -> torch.Tensor:
    """What the student is fitted to, float32 [queries, k]; entries may be negative, as the noise is.

    Votes, float32 [queries, k], are released mean votes or, where they are centred, mean deviations from the centre.
    """
    mean = votes + queries.centre if centred else votes
    mixed = (1 - config.mix) * mean + config.mix * queries.centre
    return top1(mixed, queries.allowed) if config.label == "top1" else mixed


def top1(votes: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """All of the mass on the candidate with the largest noisy vote: SeqPATE's ablation -KL (table 3)."""
    best = votes.masked_fill(~allowed, -torch.inf).argmax(1)
    return torch.nn.functional.one_hot(best, votes.shape[1]).float()
