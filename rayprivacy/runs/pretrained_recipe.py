"""Recipes whose base model can be trained on public text first (see `runs.pretraining`)."""

from rayprivacy.models.settings import PretrainConfig
from rayprivacy.runs.recipe import Recipe


class PretrainedRecipe(Recipe):
    """A recipe with a `pretrain` block.

    Attributes:
        pretrain: how the base model is trained on public text, before private text is read; None leaves it as it is.
    """

    pretrain: PretrainConfig | None = None
