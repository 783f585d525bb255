"""What the plan says of a recipe's `match` block: the charge of the votes, and how many texts are written for it.

Imports neither torch nor Ray: a plan needs it.
"""

import math
from importlib.util import find_spec

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.matching.settings import MatchConfig
from rayprivacy.models.sentence_weights import sentence_weights
from rayprivacy.release.margins import Margins
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.matched_recipe import MatchedRecipe
from rayprivacy.runs.plan import Stage, Work

MATCH = "topics and lengths"
PARTS_VOTED = "parts_voted"
_BLOCKS = 2
# Operations for one text: 20 tokens through the sentence model's 11 million weights, thrice as slow in small calls.
_OF_TEXT = 3 * 20 * 2 * 11e6
_EMBEDDINGS = 2  # of each candidate: when topics are made, and when it is cut


def match_stages(recipe: MatchedRecipe, texts: int, parts: int) -> tuple[Stage, ...]:
    """The charged stage of matching; none where nothing is matched.

    Args:
        recipe: the recipe.
        texts: how many are released.
        parts: of the sharded corpus.
    """
    match, unit = recipe.match, recipe.privacy.unit
    if match is None:
        return ()
    kept = f"{texts} texts of {candidates_of(match, texts)} are kept"
    detail = f"one Gaussian release of multiplier {match.sigma:g}; {kept}"
    work = (Work(PARTS_VOTED, parts),)
    read = (recipe.corpus.max_records_per_user or 1) * _OF_TEXT
    efforts = (
        Effort("encode", _EMBEDDINGS * candidates_of(match, texts) * _OF_TEXT),
        Effort("encode", read, users=True, processes=parts, threads=False),
    )
    return (Stage(MATCH, "private text", detail, (planned_margins(match, unit).event,), work=work, efforts=efforts),)


def planned_margins(match: MatchConfig, unit: PrivacyUnit, blocks: tuple[int, ...] = (1,) * _BLOCKS) -> Margins:
    """The mechanism of the votes; its charge does not depend on the number of cells."""
    return Margins(blocks, match.sigma, unit)


def charged_margins(recipe: MatchedRecipe) -> Margins | None:
    """The votes that are charged beside everything else of a recipe; None where it has no `match` block.

    Raises:
        ConfigError: they cost more than the budget by themselves.
    """
    match, privacy = recipe.match, recipe.privacy
    if match is None:
        return None
    margins = planned_margins(match, privacy.unit)
    alone = epsilon([margins.event], privacy.delta, "pld")
    if alone >= privacy.epsilon:
        raise ConfigError(
            f"match.noise_multiplier is {match.sigma:g}: these votes alone cost epsilon {alone:.2g}, and"
            f" privacy.epsilon is {privacy.epsilon:g}: give them more noise, or remove the block."
        )
    return margins


def candidates_of(match: MatchConfig | None, texts: int) -> int:
    """How many texts the released model writes, so that so many can be chosen among them."""
    return texts if match is None else math.ceil(texts * match.candidates)


def check_match(match: MatchConfig | None) -> None:
    """Refuse a `match` block whose packages are missing.

    Raises:
        ConfigError: names what is to be installed.
    """
    if match is None:
        return
    if find_spec("sklearn") is None:
        raise ConfigError("match needs scikit-learn: pip install 'rayprivacy[eval]', or remove the block.")
    sentence_weights()
