"""The plan of SanText: one charge for all words of a user, a public model that learns to read them, and the claim.

Epsilons of two releases add up for what both protect. So what one of them releases as it is (white space, place
and kind of typed values) is no part of what an account claims, and labels are a part where they are
randomised. Which words are protected is told by the events themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import MetricLocalDpEvent, document_epsilon
from rayprivacy.blocks.pretrain_plan import PRETRAINING, PRETRAINING_STEPS
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import AccountKind, NeighbouringRelation, Protection
from rayprivacy.methods.santext.mechanisms import Planned, planned
from rayprivacy.methods.santext.recipe import READER_BATCH, READER_WORDS, SanTextRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.meaning import column_named
from rayprivacy.runs.plan import EVALUATION, FULL, Block, Effort, Plan, Stage, Work
from rayprivacy.sanitize.labels import Labels
from rayprivacy.sanitize.mechanism import SanText

WORDS, PARTS_SANITISED = "sanitised text", "parts_sanitised"
ROW_FLOPS = 4000 * 400.0  # for each word of the vocabulary: distinct words of a part, times what a cell costs
MEANINGFUL = 50.0  # above it, a document's epsilon says nothing
NO_GUARANTEE = "no meaningful guarantee: the epsilon of a {} is {:.4g}, above 50; it slows down an attack, and no more"
PUBLIC = (
    "The vocabulary, its order by frequency and its vectors are public and were not learnt from the corpus.",
    "All words that are not on the list are one symbol: they cannot be told from each other, and none is released.",
    "A guarantee for words is not one for what a document says: words hint at each other, and whoever reads the whole"
    " sanitised text may guess some from their neighbours.",
    "The coins are a stream of AES-256 under the key file: the key file stays secret for good, because whoever has it"
    " can tell which words were kept.",
)
PUBLISHED = "SanText (2021), as published: epsilon per token and unit of distance only"


def plan_run(recipe: SanTextRecipe) -> Plan:
    """The plan of a recipe."""
    size, attacked = size_of(recipe.model.base), recipe.evaluation.attacked
    efforts = (Effort("encode", size.forward(attacked)),) if attacked else ()
    measuring = Stage(EVALUATION, "private text", f"{attacked} words are attacked", efforts=efforts)
    return Plan.of(recipe, WordsBlock(), Reader(), measuring=measuring)


@dataclass(frozen=True)
class WordsBlock(Block):
    """The draws that replace all words of the corpus, and its labels where these are randomised."""

    calibrated: ClassVar[bool] = True
    found: Any = None
    charges: tuple[MetricLocalDpEvent, ...] = ()

    def fitted(self, recipe: SanTextRecipe, beside: Sequence[DpEvent]) -> "WordsBlock":
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
        return WordsBlock(found, charges)

    def stages(self, recipe: SanTextRecipe) -> tuple[Stage, ...]:
        """One stage with a charge for words, and one for labels."""
        vocabulary, parts = self.found.vocabulary, recipe.resources.parts
        efforts = (Effort("product", parts * ROW_FLOPS * len(vocabulary), processes=parts, threads=False),)
        detail = f"{len(vocabulary)} words of {vocabulary.name}, {recipe.sanitize.mechanism}"
        work = (Work(PARTS_SANITISED, parts),)
        return (Stage(WORDS, "private text", detail, self.charges, work=work, efforts=efforts, mechanism=self.found),)

    def assumptions(self, recipe: SanTextRecipe) -> tuple[Placed, ...]:
        """What is public, and what is not protected."""
        return at(Where.PUBLIC, *PUBLIC, *_not_protected(recipe, self.found))

    def facts(self, recipe: SanTextRecipe) -> Mapping[str, Any]:
        """What the account, the certificate and the card say."""
        found: Planned = self.found
        return {
            "protection": Protection(recipe.privacy.unit, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL),
            "protects": _protected_of(recipe),
            "noise": f"each word at epsilon {found.mechanism.token_epsilon:.4g} at most",
            "shards": recipe.resources.parts,
            **_claimed(recipe, found, self.charges),
        }


class Reader(Block):
    """The public model that learns to read sanitised text; nothing without the `pretraining` block."""

    def stages(self, recipe: SanTextRecipe) -> tuple[Stage, ...]:
        """Its training."""
        config, size = recipe.pretraining, size_of(recipe.model.base)
        if config is None:
            return ()
        words = config.steps * READER_BATCH * READER_WORDS * FULL
        efforts = (Effort("train", size.forward(3 * words)),)
        detail = f"{config.steps} steps of {READER_BATCH} texts"
        work = (Work(PRETRAINING_STEPS, config.steps),)
        return (Stage(PRETRAINING, "public text", detail, work=work, efforts=efforts),)


def _protected_of(recipe: SanTextRecipe) -> str:
    """What is protected of a unit, e.g. `words of text, labels topic, not layout`."""
    config, corpus = recipe.sanitize, recipe.corpus
    labels = sorted(map(column_named, corpus.labels)) if config.labels.kind == "randomize" else []
    released = ["layout"] * (config.layout == "keep")
    if config.entities:
        kept = "place, kind and equality" if config.consistent else "place and kind"
        released.append(f"{kept} of {' '.join(sorted(config.entities))} by {config.detector}")
    parts = [f"words of {column_named(corpus.text)}"]
    parts += [f"labels {' '.join(labels)}"] if labels else []
    parts += [f"not {' nor '.join(released)}"] if released else []
    return ", ".join(parts)


def _claimed(recipe: SanTextRecipe, found: Planned, charges: Sequence[MetricLocalDpEvent]) -> Mapping[str, Any]:
    labels = Labels(recipe.sanitize.labels, recipe.corpus.labels)
    alone = (found.mechanism.event(recipe.sanitize.max_tokens), labels.event(1))
    document = sum(document_epsilon(event) for event in alone if event is not None)
    together = sum(map(document_epsilon, charges))
    units = {"document": document, str(recipe.privacy.unit): together}
    large = [NO_GUARANTEE.format(unit, epsilon) for unit, epsilon in units.items() if epsilon > MEANINGFUL]
    return {
        "figures": _figures(recipe, found, document, together),
        "warnings": tuple(large[:1]),
        "as_published": {PUBLISHED: found.mechanism.table.epsilon} if isinstance(found.mechanism, SanText) else {},
    }


def _figures(recipe: SanTextRecipe, found: Planned, document: float, together: float) -> dict[str, str]:
    config, mechanism = recipe.sanitize, found.mechanism
    documents = f"{recipe.records} document{'s' * (recipe.records > 1)}"
    apart = "that differ in sensitive words alone, " if config.plus else ""
    figures = {
        "Epsilon of a document": f"{document:.5g}, for two documents of one length, {apart}of at most"
        f" {config.max_tokens} words",
        f"Epsilon of a {recipe.privacy.unit}": f"{together:.5g}, of {documents} at most",
        "Epsilon of a word": f"{mechanism.token_epsilon:.5g}, the worst of all pairs",
    }
    if isinstance(mechanism, SanText):
        figures |= {
            "Epsilon for each unit of distance": f"{mechanism.table.epsilon:g}",
            "Worst pair": " and ".join(f"'{word}'" for word in found.worst or ()),
        }
    figures |= {
        "Words kept": f"{found.keep:.3g}, in the median over the words that can come out",
        "Randomised response that keeps as many": f"epsilon {found.competitor:.4g} for every pair of words",
        "Vocabulary": f"{found.vocabulary.digest[:16]}, {len(found.vocabulary)} words of {found.vocabulary.name}",
    }
    if isinstance(mechanism, SanText) and mechanism.replaced is not None:
        common, kept = mechanism.table.first, f"{1 - mechanism.replaced / 2**32:.0%}"
        figures["Sensitive words"] = f"{mechanism.sensitive[:16]}, all but the {common} most frequent ones"
        figures["Not protected"] = f"the {common} most frequent words: released as they are in {kept} of cases"
    return figures


def _not_protected(recipe: SanTextRecipe, found: Planned) -> tuple[str, ...]:
    config, mechanism = recipe.sanitize, found.mechanism
    said = [
        "Lengths are not protected: how many words a document has, as the public rule of words counts them (up to the"
        " bound), and how many documents there are. Every row with a user is a document, also one that says what"
        " another one says, or nothing; which of a user's are kept follows from their places in the source."
    ]
    if isinstance(mechanism, SanText) and mechanism.replaced is not None:
        said.append(
            f"Sensitive words only: the {mechanism.table.first} most frequent words of the public list are released as"
            f" they are with probability {1 - mechanism.replaced / 2**32:.3g}, and two documents that differ in these"
            " words have no finite epsilon."
        )
    if config.entities:
        consistent = " Equal values have equal ones, so it is seen that they are equal." if config.consistent else ""
        said.append(
            f"Of typed values ({', '.join(config.entities)}) place, kind and layout are released, and nothing of the"
            f" value: others are made up.{consistent} What the patterns do not find is treated as words."
        )
    if config.layout == "keep":
        said.append("The white space between words is released.")
    if recipe.corpus.labels and config.labels.kind == "copy":
        said.append(f"Labels ({', '.join(recipe.corpus.labels)}) are released as they are.")
    return tuple(said)
