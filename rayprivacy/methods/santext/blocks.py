"""The blocks of SanText: one charge for all words of a user, and a public model that learns to read what comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import MetricLocalDpEvent, document_epsilon
from rayprivacy.blocks.pretrain_plan import PRETRAINING, PRETRAINING_STEPS
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import AccountKind, NeighbouringRelation, Protection
from rayprivacy.methods.santext import claim
from rayprivacy.methods.santext.mechanisms import Planned, planned
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.plan import FULL, Block, Effort, Stage, Work
from rayprivacy.sanitize.labels import Labels

WORDS, PARTS_SANITISED = "sanitised text", "parts_sanitised"
ROW_FLOPS = 4000 * 400.0  # for each word of the vocabulary: distinct words of a part, times what a cell costs


@dataclass(frozen=True)
class Words(Block):
    """The draws that replace all words of the corpus, and its labels where these are randomised."""

    calibrated: ClassVar[bool] = True
    found: Any = None
    charges: tuple[MetricLocalDpEvent, ...] = ()

    def fitted(self, recipe: SanTextRecipe, beside: Sequence[DpEvent]) -> "Words":
        """With the epsilon of a word that the recipe asks for, or that its budget leaves."""
        found, labels = planned(recipe), Labels(recipe.sanitize.labels, recipe.corpus.labels).event(recipe.records)
        words = found.mechanism.event(recipe.records * recipe.sanitize.max_tokens)
        charges = (words,) if labels is None else (words, labels)
        cost = sum(map(document_epsilon, charges))
        if cost > recipe.privacy.epsilon:
            raise ConfigError(
                f"privacy.epsilon is {recipe.privacy.epsilon:g}, and all words of a {recipe.privacy.unit} cost"
                f" {cost:.6g}: raise it to {cost * 1.0001:.5g}, lower sanitize.keep or sanitize.epsilon (without both,"
                " what fits is found), or sanitize.max_tokens or corpus.max_records_per_user."
            )
        return Words(found, charges)

    def stages(self, recipe: SanTextRecipe) -> tuple[Stage, ...]:
        """One stage with a charge for words, and one for labels."""
        vocabulary, parts = self.found.vocabulary, recipe.resources.parts
        efforts = (Effort("product", parts * ROW_FLOPS * len(vocabulary), processes=parts, threads=False),)
        detail = f"{len(vocabulary)} words of {vocabulary.name}, {recipe.sanitize.mechanism}"
        work = (Work(PARTS_SANITISED, parts),)
        return (Stage(WORDS, "private text", detail, self.charges, work=work, efforts=efforts, mechanism=self.found),)

    def assumptions(self, recipe: SanTextRecipe) -> tuple[Placed, ...]:
        """What is public, and what is not protected."""
        return at(Where.PUBLIC, *claim.PUBLIC, *claim.not_protected(recipe, self.found))

    def facts(self, recipe: SanTextRecipe) -> Mapping[str, Any]:
        """What the account, the certificate and the card say."""
        found: Planned = self.found
        return {
            "protection": Protection(recipe.privacy.unit, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL),
            "protects": claim.protected_of(recipe),
            "noise": f"each word at epsilon {found.mechanism.token_epsilon:.4g} at most",
            "shards": recipe.resources.parts,
            **claim.figures(recipe, found, self.charges),
        }


class Reader(Block):
    """The public model that learns to read sanitised text; nothing without the `pretraining` block."""

    def stages(self, recipe: SanTextRecipe) -> tuple[Stage, ...]:
        """Its training."""
        config, size = recipe.pretraining, size_of(recipe.model.base)
        if config is None:
            return ()
        words = config.steps * config.batch * config.max_words * FULL
        efforts = (Effort("train", size.forward(3 * words)),)
        detail = f"{config.steps} steps of {config.batch} texts"
        work = (Work(PRETRAINING_STEPS, config.steps),)
        return (Stage(PRETRAINING, "public text", detail, work=work, efforts=efforts),)
