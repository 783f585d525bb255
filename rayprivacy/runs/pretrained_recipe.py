"""Recipes whose base model can be trained on public text first (see `runs.pretraining`)."""

from pydantic import model_validator

from rayprivacy.core.mirror.uris import has_credentials
from rayprivacy.models.settings import PretrainConfig
from rayprivacy.runs.places import apart
from rayprivacy.runs.recipe import Recipe


class PretrainedRecipe(Recipe):
    """A recipe with a `pretrain` block.

    Attributes:
        pretrain: how the base model is trained on public text, before private text is read; None leaves it as it is.
    """

    pretrain: PretrainConfig | None = None

    @model_validator(mode="after")
    def _pretrains_on_other_text(self) -> "PretrainedRecipe":
        if self.pretrain is None:
            return self
        if self.pretrain.source and has_credentials(self.pretrain.source):
            raise ValueError(
                "pretrain.source is a URI with credentials in it: give them by the environment, or by the machine's"
                " role"
            )
        for key, what in (("source", "text"), ("prompts", "prompts")):
            path = getattr(self.pretrain, key)
            if path and not apart(path, self.corpus.source):
                raise ValueError(
                    f"pretrain.{key} is the private corpus: name public {what}, in a file or folder of its own, or"
                    " remove 'pretrain'"
                )
        return self
