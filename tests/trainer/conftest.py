"""A small dataset of 30 users, and trainers of the tiny model on one local Ray."""

from pathlib import Path
from typing import Any

import pytest
from trainer_bench import TrainerBench


@pytest.fixture
def bench(tmp_path: Path, tiny_base: Path, local_ray: Path) -> TrainerBench:
    return TrainerBench(tmp_path, tiny_base)


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, local_ray: Path) -> TrainerBench:
    return TrainerBench(tmp_path_factory.mktemp("bench"), tiny_base)


@pytest.fixture(scope="module")
def fitted(shared_bench: TrainerBench) -> Any:
    """What two workers trained, from a model that was given as an object; with all reports that Ray Train had."""
    return shared_bench.trainer(workers=2, name="mine", given=True, callbacks=[shared_bench.callback()]).fit()
