"""`DPTorchTrainer`: a trainer of Ray Train whose steps are private by user, and paid for by an account of the ledger.

    trainer = DPTorchTrainer(
        model,
        tokenizer=tokenizer,
        dataset=ray.data.read_parquet("chats/"),
        corpus={"user": "author", "text": "message"},
        privacy={"epsilon": 8.0, "delta": 1e-6, "account": "chats", "ledger": "sqlite:///ledger.db"},
        training={"sampling_rate": 0.05, "expected_batch": 100, "steps": 200},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="mine", storage_path="/data/runs"),
    )
    print(trainer.plan())        # noise and cost; touches no data
    result = trainer.fit()       # result.metrics["certificate"], result.checkpoint

Charges, draws, files and resuming are those of every other run. Losses and norms of gradients are private:
no metric, callback, log or checkpoint has them. A model that was handed over as an object is public, like every base
model; the copy from which workers load it is saved once into the storage of the run.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.train import Checkpoint, Result, RunConfig, ScalingConfig
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rayprivacy.blocks.steps import RayTrain
from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, at_home
from rayprivacy.core.private import digest_json
from rayprivacy.core.uris import is_uri
from rayprivacy.dpsgd.losses import RowLoss
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.ledger.store import Ledger
from rayprivacy.models.backbone import Backbone, tokenizer_rules
from rayprivacy.models.loading import check_model
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.runs.calibration import of_run
from rayprivacy.runs.decide import decided
from rayprivacy.runs.directory import MODEL, calibrated, stored_recipe
from rayprivacy.runs.drive import drive
from rayprivacy.runs.outline import Outline
from rayprivacy.trainer.method import TrainerRecipe, name_of_loss, plan_training, trainer_method

if TYPE_CHECKING:
    from ray.data import Dataset


@dataclass(frozen=True)
class GivenModel:
    """A public causal language model with its tokenizer, as objects."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    digest: str  # of configuration, weights and tokenizer as they were when they were handed over

    @staticmethod
    def of(model: PreTrainedModel, tokenizer: Any) -> "GivenModel":
        """The model with its digest; ConfigError where there is no tokenizer, or the model has an adapter inside."""
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ConfigError("a model was given without its tokenizer: give tokenizer=..., a Hugging Face tokenizer.")
        check_model(f"a {type(model).__name__}", model)
        return GivenModel(model, tokenizer, _digest(model, tokenizer))

    def folder(self, storage: Path) -> Path:
        """Where its copy is."""
        return storage / f"base-{self.digest[:16]}"

    def save(self, storage: Path) -> None:
        """Save the copy, whole, unless it is there; ConfigError where the model was changed since it was given."""
        folder = self.folder(storage)
        if folder.is_dir():
            return
        if _digest(self.model, self.tokenizer) != self.digest:
            raise ConfigError("the model was changed after it was given to the trainer: make the trainer anew.")
        scratch = folder.with_name(f".{folder.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        with no_progress_bars():
            self.model.save_pretrained(scratch)
            self.tokenizer.save_pretrained(scratch)
        scratch.rename(folder)


def _digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    return digest_json([Backbone(tokenizer, 0, 0, model=model).digest, tokenizer_rules(tokenizer)])


Keys = Mapping[str, Any]


class DPTorchTrainer:
    """Trains a causal language model of Hugging Face with DP-SGD by user, or by record, on Ray Train.

    Attributes:
        recipe: the resolved settings; `recipe.release_id` names the release. Equal settings are the same release, and
            are paid for once.
        path: the run directory, `storage_path/name`; of its owner alone. `private/` holds everything that was computed
            from the dataset, until `rayprivacy clean`.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | ModelConfig | Keys,
        *,
        dataset: "Dataset",
        privacy: PrivacyConfig | Keys,
        tokenizer: Any = None,
        loss: RowLoss | None = None,
        corpus: Keys | None = None,
        training: DpSgdConfig | Keys | None = None,
        adapter: AdapterConfig | Keys | None = None,
        engine: EngineConfig | Keys | None = None,
        seed: int = 0,
        ledger: str | Ledger | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        console: Console | None = None,
    ) -> None:
        """Check the settings; nothing is read, written or charged.

        Args:
            model: a public model, or where one is: the name, path or hub id of a `ModelConfig`.
            dataset: the private rows.
            privacy: unit, epsilon, delta, account, ledger and key file, as in a recipe.
            tokenizer: of a model that is given as an object.
            loss: loss of each row, [rows], from model and batch: a function that Ray can pickle, of the weights and of
                each row alone. By default the negative log-likelihood of the row's text.
            corpus: names of the columns `user`, `text` and `labels`, and bounds on one user, as in a recipe. Labels
                stand before the text as lines `name: value`, and carry no loss.
            training: the steps and the optimizer.
            adapter: what of the model is trained.
            engine: how the steps are computed; performance only. Workers and GPUs are those of `scaling_config`.
            seed: public; another seed is another release, and another charge.
            ledger: instead of `privacy.ledger`: a URL or an open ledger.
            scaling_config: of Ray Train.
            run_config: of Ray Train. A run is resumed by its name; without a run config this is the release id.
            console: where progress is shown; standard error when left out.

        Raises:
            ConfigError: a setting is wrong; the message names it and the remedy.
        """
        scaling = scaling_config or ScalingConfig()
        storage = _storage(run_config or RunConfig())
        self._given = GivenModel.of(model, tokenizer) if isinstance(model, PreTrainedModel) else None
        self._dataset, self._loss = dataset, loss
        self._console = console or Console(stderr=True)
        workers: Any = scaling.num_workers  # a pair, from least to most, for a number that changes
        workers = workers[-1] if isinstance(workers, tuple) else workers
        recipe = TrainerRecipe.parse(
            {
                "seed": seed,
                "corpus": _keys(corpus),
                "privacy": _keys(privacy) | ({"ledger": getattr(ledger, "url", ledger)} if ledger is not None else {}),
                "model": self._model(model, storage),
                "weights": self._given.digest if self._given else "",
                "adapter": _keys(adapter),
                "training": _keys(training),
                "loss": name_of_loss(loss) if loss else "",
                "resources": _keys(engine) | {"workers": workers, "gpu": scaling.use_gpu},
            }
        )
        self.recipe = decided(recipe, stored_recipe(storage / str(run_config.name if run_config else "")))
        named = run_config or RunConfig(name=self.recipe.release_id)
        self._ray_train = RayTrain(scaling, replace(named, storage_path=str(storage)))
        self._storage = storage
        self.path = storage / str(named.name)

    def plan(self) -> Outline:
        """The stage, the noise and the cost; prints as a table. ConfigError where no noise is enough for the budget."""
        with of_run(calibrated(self.path)):
            return Outline(self.recipe, plan_training(self.recipe), measured=False)

    def fit(self) -> Result:
        """Train, or finish what an earlier `fit` of the same name began; nothing is charged or drawn twice.

        Returns:
            `metrics` with `certificate` (JSON values), its `epsilon` and the `release_id`; `checkpoint`, a folder for
            `AutoModelForCausalLM.from_pretrained(result.checkpoint.path)`; `path`, the run directory.

        Raises:
            BudgetRefusedError: the account has less left than the run asks for; what was charged before stays charged.
            RayPrivacyError: anything else stopped the run; one sentence, without private text.
        """
        method = trainer_method(self._loss, self._ray_train, self._save_base)
        _, certificate = drive(
            method, self.recipe, self.path, dataset=self._dataset, console=self._console, measured=False
        )
        figures = {"certificate": certificate, **{name: certificate[name] for name in ("epsilon", "release_id")}}
        checkpoint = Checkpoint.from_directory(str(self.path / MODEL))
        return Result(metrics=figures, checkpoint=checkpoint, error=None, path=str(self.path))

    def _save_base(self) -> None:
        if self._given:
            self._given.save(self._storage)

    def _model(self, model: Any, storage: Path) -> Json:
        if self._given:
            dtype = str(self._given.model.dtype).removeprefix("torch.")
            return {"base": str(self._given.folder(storage)), "dtype": dtype}
        if isinstance(model, str):
            return {"base": model}
        if isinstance(model, ModelConfig | Mapping):
            return _keys(model)
        raise ConfigError(
            f"the model is a {type(model).__name__}: give a transformers PreTrainedModel, or the name, path or hub id"
            " of one."
        )


def _storage(run_config: RunConfig) -> Path:
    """The folder of all runs, which this process and the workers see."""
    place = str(run_config.storage_path)
    if is_uri(place) or run_config.storage_filesystem is not None:
        raise ConfigError(
            "run_config.storage_path is not a path of a file system that driver and workers mount: give one. The shards"
            " of the private dataset lie there too."
        )
    return at_home(place).absolute()


def _keys(block: Config | Keys | None) -> Json:
    # Keys that were not set take the defaults of a trainer, not those of the block.
    return block.model_dump(exclude_unset=True) if isinstance(block, Config) else dict(block or {})
