"""The plan of SanText: one charge for all words of a user, and the figures that say what it means."""

from collections.abc import Mapping

from rayprivacy.accounting.metric import MetricLocalDpEvent, document_epsilon
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import AccountKind, NeighbouringRelation, Protection
from rayprivacy.methods.santext.mechanisms import Planned, planned
from rayprivacy.methods.santext.protected import protected_of
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import OF_UNIT, TIMING
from rayprivacy.runs.effort import FULL, Effort
from rayprivacy.runs.plan import EVALUATION, Plan, Stage, Work
from rayprivacy.runs.pretrain_plan import PRETRAINING, PRETRAINING_STEPS
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


def plan_run(recipe: SanTextRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: what it asks for costs more than `privacy.epsilon`.
    """
    found, labels = planned(recipe), Labels(recipe.sanitize.labels, recipe.corpus.labels)
    charges = [found.mechanism.event(recipe.records * recipe.sanitize.max_tokens)]
    charges += [event for event in (labels.event(recipe.records),) if event is not None]
    _check(recipe, charges)
    alone = (found.mechanism.event(recipe.sanitize.max_tokens), labels.event(1))
    document = sum(document_epsilon(event) for event in alone if event is not None)
    everything = sum(map(document_epsilon, charges))
    parts = recipe.resources.parts
    work = (Work(PARTS_SANITISED, parts),)
    efforts = (Effort("product", parts * ROW_FLOPS * len(found.vocabulary), processes=parts, threads=False),)
    detail = f"{len(found.vocabulary)} words of {found.vocabulary.name}, {recipe.sanitize.mechanism}"
    return Plan(
        stages=(
            Stage(WORDS, "private text", detail, tuple(charges), work=work, efforts=efforts),
            *_pretraining(recipe),
        ),
        protection=Protection(recipe.privacy.unit, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL),
        protects=protected_of(recipe),
        noise=f"each word at epsilon {found.mechanism.token_epsilon:.4g} at most",
        assumptions=(*OF_UNIT[recipe.privacy.unit], *PUBLIC, *_not_protected(recipe, found), TIMING),
        shards=parts,
        measuring=_measuring(recipe),
        figures=_figures(recipe, found, charges, document),
        warnings=_warnings({"document": document, str(recipe.privacy.unit): everything}),
        as_published=_as_published(found),
    )


def _pretraining(recipe: SanTextRecipe) -> tuple[Stage, ...]:
    config = recipe.pretraining
    if config is None:
        return ()
    size, words = size_of(recipe.model.base), config.steps * config.batch * config.max_words * FULL
    efforts = (Effort("train", size.forward(3 * words)),)
    work = (Work(PRETRAINING_STEPS, config.steps),)
    detail = f"{config.steps} steps of {config.batch} texts"
    return (Stage(PRETRAINING, "public text", detail, work=work, efforts=efforts),)


def _measuring(recipe: SanTextRecipe) -> Stage:
    size, attacked = size_of(recipe.model.base), recipe.evaluation.attacked
    efforts = (Effort("encode", size.forward(attacked)),) if attacked else ()
    return Stage(EVALUATION, "private text", f"{attacked} words are attacked", efforts=efforts)


def _check(recipe: SanTextRecipe, charges: list[MetricLocalDpEvent]) -> None:
    cost = sum(map(document_epsilon, charges))
    if cost > recipe.privacy.epsilon:
        raise ConfigError(
            f"privacy.epsilon is {recipe.privacy.epsilon:g}, and all words of a {recipe.privacy.unit} cost {cost:.6g}:"
            f" raise it to {cost * 1.0001:.5g}, lower sanitize.keep or sanitize.epsilon (without both, what fits is"
            " found), or sanitize.max_tokens or corpus.max_records_per_user."
        )


def _warnings(epsilons: Mapping[str, float]) -> tuple[str, ...]:
    """One at most, of the smallest unit whose guarantee says nothing."""
    large = [NO_GUARANTEE.format(unit, epsilon) for unit, epsilon in epsilons.items() if epsilon > MEANINGFUL]
    return tuple(large[:1])


def _figures(
    recipe: SanTextRecipe, found: Planned, charges: list[MetricLocalDpEvent], document: float
) -> dict[str, str]:
    config, mechanism = recipe.sanitize, found.mechanism
    apart = "that differ in sensitive words alone, " if config.plus else ""
    figures = {
        "Epsilon of a document": f"{document:.5g}, for two documents of one length, {apart}of at most"
        f" {config.max_tokens} words",
        f"Epsilon of a {recipe.privacy.unit}": f"{sum(map(document_epsilon, charges)):.5g}, of"
        f" {_counted(recipe.records, 'document')} at most",
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
        common = mechanism.table.first
        figures["Sensitive words"] = f"{mechanism.sensitive[:16]}, all but the {common} most frequent ones"
        figures["Not protected"] = f"the {common} most frequent words: released as they are in {_kept(mechanism)}"
    return figures


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _kept(mechanism: SanText) -> str:
    assert mechanism.replaced is not None
    return f"{1 - mechanism.replaced / 2**32:.0%} of cases"


def _not_protected(recipe: SanTextRecipe, found: Planned) -> tuple[str, ...]:
    config, mechanism = recipe.sanitize, found.mechanism
    said = [
        "Lengths are not protected: how many words a document has, as the public rule of words counts them (up to the"
        " bound), and how many documents there are. Every row with a user is a document, also one that says what"
        " another one says, or nothing; which of a user's are kept follows from their places in the source.",
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
    if config.case == "keep":
        said.append("The case of every word is released.")
    if config.layout == "keep":
        said.append("The white space between words is released.")
    if recipe.corpus.labels and config.labels.kind == "copy":
        said.append(f"Labels ({', '.join(recipe.corpus.labels)}) are released as they are.")
    return tuple(said)


def _as_published(found: Planned) -> dict[str, float]:
    if not isinstance(found.mechanism, SanText):
        return {}
    return {"SanText (2021), as published: epsilon per token and unit of distance only": found.mechanism.table.epsilon}
