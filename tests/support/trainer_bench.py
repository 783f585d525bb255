"""Trainers of the tiny model, with a dataset, a ledger and a storage of their own."""

from pathlib import Path
from typing import Any

import pandas as pd
import ray.data
from ray.train import RunConfig, ScalingConfig, UserCallback
from recipes import TRAINING
from rich.console import Console
from small_jobs import SENTENCES, USERS, ledger_lines, sentence

import rayprivacy as rp

QUIET = Console(quiet=True)
SPOKEN = "spoken in private"


class _Written(UserCallback):
    """Writes down what Ray Train is told; it runs in the controller's process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        with self.file.open("a") as file:
            file.write(f"{metrics}\n")


class TrainerBench:
    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base = folder, base

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def callback(self) -> UserCallback:
        return _Written(self.reports)

    def dataset(self) -> Any:
        rows = [(f"user-{u}", f"{SPOKEN} {sentence(u, n)}") for u in range(USERS) for n in range(SENTENCES)]
        topics = [("food", "pets")[n % 2] for n in range(len(rows))]
        return ray.data.from_pandas(pd.DataFrame(rows, columns=["who", "said"]).assign(topic=topics))

    def trainer(
        self, *, workers: int = 1, name: str = "run", given: bool = False, callbacks: Any = None, **changed: Any
    ) -> rp.DPTorchTrainer:
        settings: dict[str, Any] = {
            "dataset": self.dataset(),
            "corpus": {"user": "who", "text": "said", "labels": ["topic"]},
            "privacy": {"epsilon": 8.0, "key": str(self.folder / "secret.key"), "account": "talk"},
            "ledger": f"sqlite:///{self.folder}/ledger.db",
            "training": TRAINING,
            "engine": {"cpus": 1},
            "scaling_config": ScalingConfig(num_workers=workers),
            "run_config": RunConfig(name=name, storage_path=str(self.storage), callbacks=callbacks),
            "console": QUIET,
        }
        settings |= self.model() if given else {"model": {"base": str(self.base), "dtype": "float32"}}
        return rp.DPTorchTrainer(**settings | changed)

    def model(self) -> dict[str, Any]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        kinds = {"model": AutoModelForCausalLM, "tokenizer": AutoTokenizer}
        return {name: kind.from_pretrained(self.base) for name, kind in kinds.items()}

    def charges(self) -> list[tuple[str, int, str]]:
        return ledger_lines(self.folder)
