"""What one worker of a training does with its share of the part files, without a ledger; ranks find it by name."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from rayprivacy.core.keys import load_key
from rayprivacy.dpsgd import collectives, worker
from rayprivacy.dpsgd.sampler import TAG_BYTES
from rayprivacy.dpsgd.worker import Job, Rank, Training, _Worker
from rayprivacy.models.backbone import load_backbone

Weights = dict[str, np.ndarray]


def trained(job: Job, folder: Path) -> tuple[list[set[bytes]], Weights, Weights]:
    """All steps with the units of this rank: those that it sampled in each, and the weights before and after."""
    rank = Rank(collectives.rank(), collectives.world(), collectives.world())
    own = folder / f"rank-{rank.number}-of-{rank.world}"
    own.mkdir()
    with patch.object(worker, "get_device", lambda: torch.device("cpu")):
        key, backbone = load_key(job.key_path), load_backbone(job.model)
        sampler = worker._sampler(replace(job, folder=own), rank, key, backbone)
        training = Training(worker._engine(job, key, backbone, False), sampler, backbone.end, None, 0, None)
    run, seen, before = _Worker(job, training), [], _weights(training)
    for step in range(job.release.mechanism.steps):
        places = [place for place, *_ in sampler._sample(step)]
        seen.append({sampler._tags[place * TAG_BYTES :][:TAG_BYTES] for place in places})
        training.engine.step(step, run._batches(step))
    return seen, before, _weights(training)


def _weights(training: Training) -> Weights:
    return {name: tensor.detach().numpy().copy() for name, tensor in training.engine.state_dict().items()}
