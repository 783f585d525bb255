"""A finished run, as Python sees it: its recipe, certificate and figures, and what it released.

Imports that take seconds (torch, Ray, transformers) stand inside the functions that need them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, read_json
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods import registry
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.recipe import Recipe

if TYPE_CHECKING:
    from ray.data import Dataset


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        path: its directory; for a run at a URI the local folder in which it was worked on.
        uri: where a mirror of it is; None for a plain directory.
    """

    path: Path
    uri: str | None = None

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return registry.load_recipe(self.path / "recipe.yaml")

    @property
    def certificate(self) -> Certificate:
        """What the release claims."""
        return Certificate.model_validate(read_json(self.path / "certificate.json"))

    @property
    def metrics(self) -> Json:
        """The content of metrics.json; its block `heldout` was measured on private text."""
        metrics: Json = read_json(self.path / "metrics.json")
        return metrics

    def profile(self) -> Json:
        """The content of profile.json: noisy numbers, each with its interval and the event that paid for it.

        Raises:
            ConfigError: the run is no profile.
        """
        path = self.path / "profile.json"
        if not path.is_file():
            raise ConfigError(f"{self.path} holds no profile: its method is {self.recipe.method}.")
        profile: Json = read_json(path)
        return profile

    def texts(self) -> "Dataset":
        """The released text as a Ray Dataset with the column `text`, and one for each label.

        Raises:
            ConfigError: the method releases no text.
        """
        import ray.data

        texts = method_of(self.recipe).card.texts
        if not texts:
            raise ConfigError(f"{self.path} holds no text: its method, {self.recipe.method}, releases none.")
        return ray.data.read_parquet(str(self.path / texts))

    def questions(self) -> "Dataset":
        """The questions about the released text as a Ray Dataset, kept or not: see `ask_questions`.

        Raises:
            ConfigError: none were asked, or they are not finished.
        """
        import ray.data

        from rayprivacy.runs.questions import whole_set

        return ray.data.read_parquet(str(whole_set(self.path)))

    def model(self) -> Any:
        """The released model of Hugging Face: a causal language model, or a tagger (see `Tagger`, which reads text).

        Raises:
            ConfigError: the method releases no model.
        """
        import transformers

        from rayprivacy.models.quiet import no_progress_bars
        from rayprivacy.tagging.model import is_tagger, load_tagger, saved_tagger

        folder = self._model_folder
        if is_tagger(folder):
            return load_tagger(saved_tagger(folder)).model
        with no_progress_bars():
            loader = getattr(transformers, method_of(self.recipe).card.loader)
            return loader.from_pretrained(folder, trust_remote_code=False)

    def tokenizer(self) -> Any:
        """The tokenizer of the released model.

        Raises:
            ConfigError: the method releases no model.
        """
        from rayprivacy.models.loading import load_tokenizer

        return load_tokenizer(self._model_folder)

    @property
    def _model_folder(self) -> Path:
        folder = self.path / "model"
        if not folder.is_dir():
            raise ConfigError(f"{self.path} holds no model: its method, {self.recipe.method}, releases none.")
        return folder
