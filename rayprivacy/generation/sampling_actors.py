"""Ray actors that sample blocks of prompts from a saved model.

Ray starts an actor that died again and repeats its block. What an actor is started with is a small value, never a
reference to an object: Ray cannot restart an actor whose arguments were lost with a node, and says so on the console.
The actors of Ray Data are started with references, hence these are actors of our own.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
import torch
from ray.exceptions import RayError

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.sealing import Seal
from rayprivacy.generation.settings import BATCH
from rayprivacy.generation.text_writers import WritingTask, writer_of

AHEAD = 4  # blocks for each actor that may be finished before an earlier one is
METADATA = b"rayprivacy.writing"
Prompts = Sequence[tuple[int, str]]
_SEAL = Seal(RayPrivacyError, "no file was written, run again with --resume")
_STEP = "writing synthetic text"


class SamplingActor:
    """An actor that samples blocks of prompts."""

    def __init__(self, task: WritingTask) -> None:
        torch.set_num_threads(task.threads)
        self._task = task
        self._write = writer_of(task)

    def ready(self) -> None:
        """Answer, to say that the model is loaded."""

    def sample(self, number: int, block: Prompts) -> tuple[int, pa.Table]:
        """The number of the block, and a table of cell, text and reason, with the counts of draws."""
        self._write.counts.clear()
        written = self._write([prompt for _, prompt in block], self._task.at(number))
        columns = {
            "cell": pa.array([cell for cell, _ in block], pa.int64()),
            "text": pa.array([text for text, _ in written], pa.large_string()),
            "reason": pa.array([reason for _, reason in written], pa.string()),
        }
        return number, pa.table(columns, metadata={METADATA: json.dumps(self._write.counts).encode()})


def sampled(task: WritingTask, prompts: Prompts, actors: int, blocks: Sequence[int]) -> Iterator[pa.Table]:
    """Tables of cell, text and reason of some blocks of prompts, in their order."""
    actor: Any = ray.remote(SamplingActor).options(
        num_cpus=task.threads, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1
    )
    samplers = [actor.remote(task) for _ in range(min(actors, len(blocks)))]
    try:
        yield from _in_order(_finished(samplers, prompts, blocks))
    except RayError as error:
        raise _SEAL.unwrap(_STEP, error) from error  # the cause may be told: nothing here is private
    finally:
        for sampler in samplers:
            ray.kill(sampler)


def _finished(samplers: Sequence[Any], prompts: Prompts, blocks: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    """Every block by its place among `blocks`, as it is finished; an actor gets one block at a time.

    An actor gets none before it has started, so that one that the cluster has no room for yet delays no block; and none
    that is far ahead of the oldest one that is out, so that few blocks wait for it.
    """
    out: dict[Any, int] = {}  # calls, and the place of the block
    actor_of = {sampler.ready.remote(): sampler for sampler in samplers}
    idle: list[Any] = []
    given, missing = 0, len(blocks)
    while missing:
        call = ray.wait(list(actor_of), num_returns=1)[0][0]
        idle.append(actor_of.pop(call))
        answer = ray.get(call)
        place = out.pop(call, None)
        while idle and given < len(blocks) and given - min(out.values(), default=given) < AHEAD * len(samplers):
            sampler, block = idle.pop(), blocks[given]
            own = sampler.sample.remote(block, prompts[block * BATCH : (block + 1) * BATCH])
            actor_of[own], out[own] = sampler, given
            given += 1
        if place is not None:
            missing -= 1
            yield place, answer[1]


def _in_order(finished: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
    """Tables in the order of their numbers, which are 0, 1, 2 and so on."""
    held: dict[int, pa.Table] = {}
    following = 0
    for number, table in finished:
        held[number] = table
        while following in held:
            yield held.pop(following)
            following += 1
