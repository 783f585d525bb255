"""Every key of `corpus` and `privacy` is classified, and what changes who is protected is refused on one account."""

from contextlib import closing
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import rayprivacy as rp
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.methods.registry import method_named, method_of, parse_recipe
from rayprivacy.runs.account import open_account
from rayprivacy.runs.meaning import KEYS, meaning_of
from rayprivacy.sanitize.settings import SanitizeConfig
from rayprivacy.trainer.method import TrainerRecipe, trainer_method
from rayprivacy.tuning.space import FIXED_KEYS, SEARCHABLE

RECIPES = [*(method_named(name).recipe for name in rp.method_names()), TrainerRecipe]
BLOCKS = ("corpus", "privacy")
USER, RECORD, PHRASE = PrivacyUnit
# For each unit a recipe of it, and for each key that changes its meaning another value.
BASE: dict[PrivacyUnit, dict[str, Any]] = {
    USER: {"corpus": {"user": "author"}},
    RECORD: {"corpus": {"user": "author", "labels": ["topic", "mood"], "max_records_per_user": None}},
    PHRASE: {"corpus": {"phrases": "names.txt", "max_shards_per_phrase": 2}},
}
OTHER: dict[str, Any] = {
    "corpus.user": "conversation",
    "corpus.text": "body",
    "corpus.labels": ["topic"],
    "corpus.phrases": "places.txt",
}


def keys_of(config, prefix):
    for name, field in config.model_fields.items():
        yield f"{prefix}.{name}"
        for block in (field.annotation, *get_args(field.annotation)):
            if isinstance(block, type) and issubclass(block, BaseModel):
                yield from keys_of(block, f"{prefix}.{name}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_every_key_of_corpus_and_privacy_is_classified(recipe):
    found = {key for block in BLOCKS for key in keys_of(type(recipe.model_fields[block].default), block)}
    assert found <= KEYS.keys(), "say in runs/meaning.py whether these keys change who or what is protected"


def test_the_table_has_no_key_that_is_gone_and_no_search_changes_who_is_protected():
    found = {key for recipe in RECIPES for b in BLOCKS for key in keys_of(type(recipe.model_fields[b].default), b)}
    assert found == KEYS.keys()
    assert all(key.why for key in KEYS.values())
    assert {name for name, key in KEYS.items() if key.units} == {*OTHER, "privacy.unit"}
    assert {key.partition(".")[0] for key in KEYS} <= set(FIXED_KEYS)
    assert not any(KEYS[key].units for key in SEARCHABLE)


def _recipe(folder, unit, changes):
    for name in ("names.txt", "places.txt"):
        (folder / name).write_text(f"secret {name.removesuffix('.txt')}\n")
    corpus = BASE[unit]["corpus"] | {key.removeprefix("corpus."): value for key, value in changes.items()}
    if "phrases" in corpus:
        corpus = corpus | {"phrases": str(folder / corpus["phrases"])}
    places = {"ledger": f"sqlite:///{folder}/ledger.db", "key": str(folder / "key")}
    privacy = {"unit": unit.value, "account": "one", "corpus": "mail", "epsilon": 50.0, **places}
    return parse_recipe({"method": "seqpate", "corpus": corpus, "privacy": privacy})


def _open(recipe):
    with closing(open_account(recipe, method_of(recipe).planned(recipe))):
        pass


CASES = [(name, unit) for name, key in KEYS.items() if name != "privacy.unit" for unit in key.units]


@pytest.mark.parametrize(("key", "unit"), CASES, ids=[f"{unit}-{key}" for key, unit in CASES])
def test_two_recipes_that_differ_in_who_is_protected_do_not_share_an_account(key, unit, tmp_path):
    first, second = _recipe(tmp_path, unit, {}), _recipe(tmp_path, unit, {key: OTHER[key]})
    _open(first)
    with pytest.raises(rp.LedgerError, match=r"account of its own \(privacy.account\), with the same privacy.corpus"):
        _open(second)
    _open(first)  # the account is still that of the first
    assert second.model_copy(update={"corpus": first.corpus}) == first, "the case changes one key"


def test_another_unit_is_refused_and_what_changes_no_meaning_is_admitted(tmp_path):
    alike = {"corpus.holdout": 0.2, "corpus.max_records_per_user": 7, "corpus.max_chars": 99, "corpus.text": "body"}
    for changes in ({}, *({key: value} for key, value in alike.items())):
        _open(_recipe(tmp_path, USER, changes))
    with pytest.raises(rp.LedgerError, match=r"privacy\.unit is 'record' and account 'one' was created with 'user'"):
        _open(_recipe(tmp_path, RECORD, {}))


def test_the_same_list_in_another_file_is_the_same_list(tmp_path):
    _open(_recipe(tmp_path, PHRASE, {}))
    moved = _recipe(tmp_path, PHRASE, {"corpus.phrases": "places.txt"})
    (tmp_path / "places.txt").write_text("SECRET  Names\n")
    _open(moved)
    (tmp_path / "names.txt").write_text("secret numbers\n")
    with pytest.raises(rp.LedgerError, match=r"'phrase: list [0-9a-f]{16}'"):
        _open(_recipe(tmp_path, PHRASE, {}).model_copy(update={"corpus": moved.corpus}))


def _shown(unit, folder, **corpus):
    recipe = _recipe(folder, unit, {f"corpus.{name}": value for name, value in corpus.items()})
    return meaning_of(recipe, method_of(recipe).planned(recipe))


def test_no_two_lists_of_columns_are_written_alike(tmp_path):
    assert _shown(USER, tmp_path) == "user: author"
    assert _shown(RECORD, tmp_path) == "record: author, text, mood, topic"
    shown = [
        _shown(RECORD, tmp_path, labels=labels, text=text)
        for labels, text in ((["a", "b"], "text"), (["a, b"], "text"), (["b"], "a"), ([], "a, b"), (["a"], "b"))
    ]
    assert len(set(shown)) == len(shown)
    assert _shown(RECORD, tmp_path, labels=["topic", "mood"]) == _shown(RECORD, tmp_path, labels=["mood", "topic"])


def test_a_trainer_keeps_to_one_meaning_too(tmp_path):
    place = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "account": "one"}
    recipes = [
        TrainerRecipe.parse({"corpus": {"user": name}, "privacy": place, "training": {"noise_multiplier": 5.0}})
        for name in ("author", "conversation")
    ]
    method = trainer_method(None, None)  # type: ignore[arg-type]
    with closing(open_account(recipes[0], method.planned(recipes[0]))) as ledger:
        assert ledger.account("one").parameters["of"] == "user: author"
    with pytest.raises(rp.LedgerError, match="'user: conversation'"):
        open_account(recipes[1], method.planned(recipes[1]))


SANITISE: dict[str, dict[str, Any]] = {  # what changes what is protected
    "words of the list": {"plus": {"sensitive": 0.5, "p": 0.9}},
    "labels": {"labels": {"kind": "randomize", "values": {"topic": ["a", "b"]}}},
    "layout": {"layout": "keep"},
    "typed values": {"entities": []},
    "equality": {"consistent": True},
    "detector": {"detector": "presidio"},
    "column": {},
}
OF_SANITIZE = {  # what changes only how well words are protected
    *("mechanism", "vectors", "vectors_file", "words", "length", "cap", "epsilon", "keep", "max_tokens"),
}


def test_every_key_of_the_sanitiser_is_classified():
    changing = {key for changes in SANITISE.values() for key in changes}
    assert set(SanitizeConfig.model_fields) == OF_SANITIZE | changing, "say whether a new key changes what is protected"


def test_sanitisers_that_differ_in_what_is_protected_do_not_share_an_account(tmp_path):
    place = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "account": "one", "epsilon": 1e4}

    def recipe(what="", **more):
        sanitize = {"words": 500, "max_tokens": 8, "keep": 0.3, **SANITISE.get(what, {})}
        corpus = {"labels": ["topic"], **({"text": "body"} if what == "column" else {})}
        return parse_recipe({"method": "santext", "privacy": place, "corpus": corpus, "sanitize": sanitize, **more})

    _open(recipe())
    for what in SANITISE:
        with pytest.raises(rp.LedgerError, match="epsilons of the two do not add"):
            _open(recipe(what))
    _open(recipe(seed=1))
