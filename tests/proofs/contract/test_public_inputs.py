"""Nothing that a recipe or a space declares public may be private: found by the markers of all fields there are."""

import enum
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from toy_knowledge import ATTRIBUTES

import rayprivacy as rp
from rayprivacy.core.config import PRIVATE_SIDE, PUBLIC_SIDE, Config, PathKind, path_keys
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.methods.registry import METHODS, method_named, parse_recipe
from rayprivacy.runs.files import overridden
from rayprivacy.runs.recipe import Recipe
from rayprivacy.trainer.method import TrainerRecipe
from rayprivacy.tuning.space import Space, load_space
from rayprivacy.tuning.trials import Trials

CONFIGS: dict[str, type[Config]] = {
    **{name: method_named(name).recipe for name in METHODS},
    "trainer": TrainerRecipe,
    "space": Space,
    "evaluation": EvaluationConfig,
}

# Every key that takes free text and names no place. Whoever adds a key marks it with a PathKind, or adds it here.
NO_PLACES = {
    # columns of the corpus, and what stands in its documents
    *("corpus.text", "corpus.user", "corpus.labels", "corpus.join.by", "corpus.join.order", "corpus.join.words"),
    *("corpus.join.prefix", "parses.column", "policy.column"),
    *("public.text", "public.user", "public.labels", "public.join.by", "public.join.order", "public.join.words"),
    "public.join.prefix",
    # columns of public text, or of the files of an evaluation
    *("pretrain.text", "parser.text", "training.layer_scale.text", "policy.text", "policy.label"),
    *("text", "user", "label", "tree"),
    *("questions.pairs.evidence", "questions.pairs.question", "questions.heldout"),
    # public lists of names
    *("codes.values", "sanitize.labels.values", "model.intents", "model.slots", "policy.kinds"),
    # what is asked about names, and how it is written
    *("knowledge.attributes.name", "knowledge.attributes.values", "knowledge.attributes.unit"),
    *("knowledge.attributes.questions", "knowledge.attributes.sentences"),
    # names of accounts, digests, and the ledger, whose URL is opened by SQLAlchemy and never read as text
    *("privacy.account", "privacy.corpus", "privacy.ledger", "redacted.central.account", "budget.account"),
    *("policy.digest", "weights", "loss"),
    # the machine
    *("resources.address", "resources.stages.stage"),
    # of a space: the recipe's own file, and keys of it, which are checked in every recipe that is made of them;
    # and what was released, whose private folder is never read
    *("recipe", "fixed", "search", "search.choice", "metric.name", "release"),
}
CLOSED = (int, float, bool, types.NoneType)

# What a key needs beside it to be accepted.
COMPANY: dict[str, dict[str, Any]] = {
    "policy.file": {"policy.kind": "keywords"},
    "policy.train": {"policy.kind": "classifier"},
    "parses.functions": {"parses.grammar": "lispress"},
    "parses.rules": {"parses.grammar": "ebnf"},
    "parser.source": {"corpus.labels": []},
    "training.layer_scale.source": {"training.layer_scale.from": "public"},
    "public.source": {"charging": "public", "budget": None, "metric": {"name": "distinct_2"}},
    "public.phrases": {"charging": "public", "budget": None, "metric": {"name": "distinct_2"}},
}
NEVER_TAKEN = {("edp_sgd", "training.layer_scale.source"), ("two_stage", "pretrain.prompts")}  # whatever is named


def _leaves(config):
    """The dotted keys of all fields that take free values, and whether they are marked."""
    for name, field in config.model_fields.items():
        kinds = list(_kinds(field.annotation))
        blocks = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        yield from ((f"{name}.{key}", marked) for block in blocks for key, marked in _leaves(block))
        if not all(kind in blocks or _closed(kind) for kind in kinds):
            yield name, any(isinstance(mark, PathKind) for mark in field.metadata)


def _kinds(annotation):
    """What a value may be in the end: the members of unions, tuples and mappings."""
    members = get_args(annotation)
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list, dict):
        for member in members[:1] if get_origin(annotation) is Annotated else members:
            yield from _kinds(member)
    else:
        yield annotation


def _closed(kind):
    listed = get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum))
    return kind in CLOSED or kind is Ellipsis or listed


def _unmarked(config):
    return {key for key, marked in _leaves(config) if not marked}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_that_takes_free_text_is_a_marked_place_or_known_to_be_none(name):
    config = CONFIGS[name]
    assert not _unmarked(config) - NO_PLACES, "mark it with a PathKind (see core/config.py), or add it to NO_PLACES"
    assert set(path_keys(config, *PathKind)) >= {key for key, marked in _leaves(config) if marked}
    assert {"corpus.source", "model.base"} <= set(path_keys(config, *PathKind)) or name in ("space", "evaluation")


def test_the_list_of_other_keys_names_no_key_that_is_gone_and_a_new_key_is_found():
    class New(Recipe):
        method: Literal["new"] = "new"
        words_of_the_trade: str | None = None

    class Newer(Recipe):
        method: Literal["newer"] = "newer"
        lists: tuple[Path, ...] = ()

    assert set().union(*map(_unmarked, CONFIGS.values())) == NO_PLACES
    for config, key in ((New, "words_of_the_trade"), (Newer, "lists")):
        assert _unmarked(config) - NO_PLACES == {key}


@pytest.fixture
def place(tmp_path):
    """A text that is read as a corpus, as a list of phrases, or as a key, and that says the same as a public one."""
    for name in ("private.jsonl", "public.jsonl"):
        (tmp_path / name).write_text("- my own words\n- and mine\n")
    return tmp_path / "private.jsonl"


PUBLIC_KEYS = [(name, key) for name, config in CONFIGS.items() for key in path_keys(config, *PUBLIC_SIDE)]
RECIPE_KEYS = [(name, key) for name, key in PUBLIC_KEYS if name not in ("space", "evaluation")]


def _recipe(name, key, public, **private):
    keys = {"method": name, "corpus.source": "elsewhere.jsonl"} if name != "trainer" else {}
    keys |= {"knowledge.attributes": ATTRIBUTES} if name == "knowledge" else {}
    data = overridden({}, {**keys, **COMPANY.get(key, {}), key: str(public), **{k: str(v) for k, v in private.items()}})
    return TrainerRecipe.parse(data) if name == "trainer" else parse_recipe(data)


@pytest.mark.parametrize(("name", "key"), RECIPE_KEYS)
def test_a_public_place_of_a_recipe_that_is_private_is_refused(name, key, place):
    public = place.with_name("public.jsonl")
    if (name, key) in NEVER_TAKEN:
        with pytest.raises(rp.ConfigError):
            _recipe(name, key, public)
        return
    assert _recipe(name, key, public, **{"privacy.key": place})
    for private in path_keys(CONFIGS[name], *PRIVATE_SIDE):
        value = "dataset" if (name, private) == ("trainer", "corpus.source") else place
        with pytest.raises(rp.ConfigError) as caught:
            _recipe(name, key, value, **{private: value})
        assert f"{key} is '{value}', which is {private}, and is declared public: name public text" in str(caught.value)


@pytest.mark.parametrize("key", [key for name, key in PUBLIC_KEYS if name == "space"])
def test_a_public_place_of_a_space_that_is_private_is_refused(key, place):
    public = str(place.with_name("public.jsonl"))
    assert _trials(place, {key: public})
    for private in path_keys(CONFIGS["seqpate"], *PRIVATE_SIDE):
        with pytest.raises(rp.ConfigError) as caught:
            _trials(place, {key: str(place)}, **{private: str(place)})
        assert f"{key} is '{place}', which is {private}, and is declared public" in str(caught.value)
    with pytest.raises(rp.ConfigError, match=rf"{key} is .*which is corpus\.source"):
        _trials(place, {key: str(place), "fixed.corpus.source": public}, **{"corpus.source": str(place)})


def _trials(place, changes, **recipe):
    folder = place.parent
    data = overridden({}, {"method": "seqpate", "corpus.source": "elsewhere.jsonl", "model.dtype": "float32", **recipe})
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    (key,) = (key for key in changes if not key.startswith("fixed."))
    space = {
        "recipe": "recipe.yaml",
        "search": {"votes.top_k": {"integers": [10, 20]}},
        "budget": {"account": "search", "epsilon": 8.0},
        "metric": {"name": "public_perplexity", "text": "public.jsonl"},
    }
    whole = overridden(space, {**COMPANY.get(key, {}), **changes})
    (folder / "space.yaml").write_text(yaml.safe_dump({name: value for name, value in whole.items() if value}))
    return Trials.of(load_space(folder / "space.yaml"), folder / "search")


@pytest.mark.parametrize("where", ["fixed", "search"])
@pytest.mark.parametrize("charging", ["pay_for_all", "public"])
def test_a_trial_of_a_search_takes_no_private_text_for_public(where, charging, place):
    """Nor where its own corpus is another one, because the search is public."""
    public, private = str(place.with_name("public.jsonl")), str(place)
    changes: dict[str, Any] = {"public.source": public} if charging == "public" else {"metric.text": public}
    if where == "fixed":
        changes["fixed.pretrain"] = {"source": private}
    trials = _trials(place, changes, **{"corpus.source": private})
    values = {"pretrain.source": private} if where == "search" else {"votes.top_k": 10}
    with pytest.raises(rp.ConfigError, match=r"pretrain\.source is .* which is corpus\.source, and is declared public"):
        trials.recipe(values)


def test_an_override_of_the_command_line_is_checked(place):
    path = place.with_name("recipe.yaml")
    path.write_text(yaml.safe_dump({"method": "seqpate", "corpus": {"source": str(place)}}))
    assert rp.load_recipe(path, [f"prompts={place.with_name('public.jsonl')}"])
    with pytest.raises(rp.ConfigError, match=r"prompts is .* which is corpus\.source"):
        rp.load_recipe(path, [f"prompts={place}"])


@pytest.mark.parametrize("key", [key for name, key in PUBLIC_KEYS if name == "evaluation"])
def test_an_evaluation_has_no_private_file_for_a_model(key, place):
    value: Any = str(place) if key == "base" else (str(place),)
    with pytest.raises(rp.ConfigError, match=rf"{key} is .* which is --real, and is declared public"):
        rp.evaluate(str(place), str(place.with_name("public.jsonl")), **{key: value})
