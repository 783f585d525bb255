"""A generator's training on 64 part files: eight workers sample whom one samples, and train the model that one trains.

The sums of float32 are added in another order, so that the weights agree to a tolerance, which
benchmarks/results/scaling.md states.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from rank_processes import Ranks

from rayprivacy.core.keys import create_key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import write_part
from rayprivacy.dpsgd import collectives, worker
from rayprivacy.dpsgd.sampler import TAG_BYTES
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.dpsgd.worker import Job, Rank, Training, _Worker
from rayprivacy.ledger.service import Address
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.release.steps import StepRelease

PARTS, OF_PART, STEPS = 64, 3, 12
TOLERANCE = 1e-5  # of the way that training went, in L2; benchmarks/results/scaling.md has what was measured
WORDS = "the cat sat on my mat and you like soup with bread today so we go home now".split()  # noqa: SIM905
Weights = dict[str, np.ndarray]


def trained(job, folder):
    """All steps with the units of this rank: those that it sampled in each, and the weights before and after."""
    rank = Rank(collectives.rank(), collectives.world(), collectives.world())
    own = folder / f"rank-{rank.number}-of-{rank.world}"
    own.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "get_device", lambda: torch.device("cpu"))
        key, backbone = load_key(job.key_path), load_backbone(job.model)
        sampler = worker._sampler(replace(job, folder=own), rank, key, backbone)
        training = Training(worker._engine(job, key, backbone, False), sampler, backbone.end, None, 0, None)
    run, seen, before = _Worker(job, training), [], _weights(training)
    for step in range(job.release.mechanism.steps):
        places = [place for place, *_ in sampler._sample(step)]
        seen.append({sampler._tags[place * TAG_BYTES :][:TAG_BYTES] for place in places})
        training.engine.step(step, run._batches(step))
    return seen, before, _weights(training)


def _weights(training):
    return {name: tensor.detach().numpy().copy() for name, tensor in training.engine.state_dict().items()}


@pytest.fixture
def job(tmp_path, tiny_base):
    """64 part files of 3 users each, without a ledger."""
    create_key(tmp_path / "key")
    (tmp_path / "shards").mkdir()
    schema = [("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())]
    for part in range(PARTS):
        users = [(OF_PART * part + n, record) for n in range(OF_PART) for record in range(2)]
        rows = [{"shard": part, "user": f"user-{n}", "record": at, "text": _text(n, at)} for n, at in users]
        write_part(pa.Table.from_pylist(rows, pa.schema(schema)), part, load_key(tmp_path / "key"), tmp_path / "shards")
    mechanism, optimizer = NoisySteps(0.25, 1.0, 1.0, STEPS), OptimizerConfig(learning_rate=1e-3)
    size = {"expected_batch": 48, "steps": STEPS, "chunk": STEPS, "max_records": 2, "max_tokens": 12}
    return Job(
        model=ModelConfig(base=str(tiny_base), dtype="float32"),
        adapter=AdapterConfig(),
        training=DpSgdConfig(sampling_rate=0.25, optimizer=optimizer, **size),
        engine=EngineConfig(cpus=1),
        reading=Reading(PrivacyUnit.USER, (), no_context, 12),
        shards=tmp_path / "shards",
        parts=PARTS,
        key_path=tmp_path / "key",
        folder=tmp_path,
        ledger=Address(f"sqlite:///{tmp_path}/unused.db"),
        release=StepRelease("talk", "run", "book", "inputs", mechanism, STEPS),
    )


def _text(user, record):
    return " ".join(WORDS[(user * 7 + record * 3 + at) % len(WORDS)] for at in range(5 + user % 7))


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [2, 8])
def test_any_number_of_workers_trains_the_same_model(job, tmp_path, workers, one_thread):
    seen, start, alone = trained(job, tmp_path)
    ranks = Ranks(workers)
    try:
        answers = ranks.run(trained, job, tmp_path)
    finally:
        ranks.close()
    for step in range(STEPS):
        parts = [answer[0][step] for answer in answers]
        assert set().union(*parts) == seen[step], "who is sampled does not depend on who holds whom"
        assert sum(map(len, parts)) == len(seen[step]) > 20
    assert all(any(answer[0]) for answer in answers), "every worker had users to read"
    first = answers[0][2]
    for _, _, weights in answers[1:]:
        assert all(np.array_equal(weights[name], first[name]) for name in first), "workers end with one model"
    way, gap = _distance(alone, start), _distance(alone, first)
    print(f"{workers} workers: {gap / way:.1e} of the way, digests {'equal' if gap == 0 else 'differ'}")
    assert way > 0
    assert gap < TOLERANCE * way


def _distance(one, other):
    return float(np.sqrt(sum(((one[name].astype(float) - other[name]) ** 2).sum() for name in one)))
