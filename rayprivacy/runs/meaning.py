"""What one unit of a recipe is: the term of the account that pays for it, computed from one table of keys.

An epsilon is about the presence of what one value of `corpus.user` stands for, or one record of these columns, or one
phrase of this list. Two recipes for which that is not the same must not share an account: their epsilons do not add. So
`KEYS` classifies every key of the blocks `corpus` and `privacy`, and the keys that change who or what is protected make
up the term. A key that is not classified makes a test fail.

What a method protects of a unit beside that (SanText: the words of a column) is `Plan.protects`, and how much is the
rest of the recipe.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayprivacy.core.keys import load_or_create_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.phrases import PhraseFile
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import Recipe

USER, RECORD, PHRASE = PrivacyUnit.USER, PrivacyUnit.RECORD, PrivacyUnit.PHRASE
_PLAIN = re.compile(r"\w+")
_LIST = 16  # hex digits by which people tell lists apart


@dataclass(frozen=True)
class Key:
    """What a key of `corpus` or `privacy` has to do with who or what is protected."""

    units: tuple[PrivacyUnit, ...] = ()  # whose meaning it changes; none for a key that changes no meaning
    why: str = ""  # why not, or how the account knows of it


EVERY = (USER, RECORD, PHRASE)
KEYS: Mapping[str, Key] = {
    "corpus.user": Key((USER, RECORD), "a user is all rows with one value there"),
    "corpus.text": Key((RECORD,), "part of a record; of a user, and around a phrase, every column that is read counts"),
    "corpus.labels": Key((RECORD,), "part of a record, as the text"),
    "corpus.phrases": Key((PHRASE,), "the list itself, by a keyed digest"),
    "corpus.source": Key(why="where the corpus lies; an account is one corpus, which may move and grow"),
    "corpus.max_records_per_user": Key(why="how much of a user is used"),
    "corpus.max_chars": Key(why="how much of a text is used; a row of the source is still one record"),
    "corpus.holdout": Key(why="which users are used"),
    "corpus.max_shards_per_phrase": Key(why="how much of a phrase is used"),
    "corpus.join": Key(why="how the rows of a user become documents; it is refused for other units"),
    "corpus.join.by": Key(why="as corpus.join"),
    "corpus.join.order": Key(why="as corpus.join"),
    "corpus.join.prefix": Key(why="as corpus.join"),
    "corpus.join.words": Key(why="as corpus.join"),
    "privacy.unit": Key(EVERY, "the account's unit, and the first word of the term"),
    "privacy.epsilon": Key(why="how much"),
    "privacy.delta": Key(why="how much"),
    "privacy.ledger": Key(why="where the account is"),
    "privacy.ledger_key": Key(why="who may write there"),
    "privacy.account": Key(why="which account it is"),
    "privacy.corpus": Key(why="which accounts are of one corpus; the account fixes it"),
    "privacy.composition": Key(why="how epsilons are added; the account fixes it"),
    "privacy.key": Key(why="which coins are thrown"),
}


def meaning_of(recipe: Recipe, plan: Plan) -> str:
    """Which columns mean a unit, e.g. `user: author`, as the account keeps it; for a phrase a key file is made."""
    unit = plan.protection.unit
    keys = [name for name, key in KEYS.items() if unit in key.units and name != "privacy.unit"]
    named = f"{unit}: " + ", ".join(part for name in keys for part in _named(recipe, name))
    return f"{named}; {plan.protects}" if plan.protects else named


def column_named(name: str) -> str:
    """The name of a column as it stands in terms: in quotes where it is no plain word, so that it stays one name."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _named(recipe: Recipe, key: str) -> list[str]:
    if key == "corpus.phrases":
        secret = load_or_create_key(Path(recipe.privacy.key).absolute())
        return [f"list {PhraseFile.of(str(recipe.corpus.phrases), secret).digest[:_LIST]}"]
    value: Any = recipe
    for part in key.split("."):
        value = getattr(value, part)
    if value is None:
        return ["no user"]  # every row is its own author's
    return [column_named(value)] if isinstance(value, str) else sorted(map(column_named, value))
