"""A policy's digest holds all that its function depends on: equal digests are equal functions, for every kind.

For every argument of every kind there are some values. Whoever adds a kind or an argument without values fails here.
"""

import importlib
import inspect
import pkgutil
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from test_policies import PUBLIC

from rayprivacy import policies
from rayprivacy.core.errors import ConfigError
from rayprivacy.policies.classifier import ClassifierPolicy, WordScores, train_scores
from rayprivacy.policies.policy import Policy
from rayprivacy.policies.settings import PolicyConfig, make_policy
from rayprivacy.policies.words import KeywordPolicy, PatternPolicy, SlotPolicy
from rayprivacy.sanitize.settings import KINDS

SCORES = train_scores(PUBLIC, 3)
KEPT: list[Any] = [(), ("USR:",), ("seat", "12345", "plan"), ("plan", "seat", "12345", "seat"), ("raja", "flight")]
VALUES: dict[type[Policy], dict[str, list[Any]]] = {
    KeywordPolicy: {"phrases": [["seat"], ["Seat,", "seat"], ["seat", "zip code"], ["plan"]], "kept": KEPT},
    PatternPolicy: {"kinds": [KINDS, KINDS[::-1], ("email",)], "kept": KEPT},
    SlotPolicy: {"column": ["slots", "intents"], "kept": KEPT},
    ClassifierPolicy: {
        "scores": [SCORES, replace(SCORES, bias=SCORES.bias + np.array([9.0, 0.0]))],
        "window": [3, 1],
        "threshold": [0.8, 0.99],
        "kept": KEPT,
    },
}
WORDS = "USR: a seat on the flight 12345 raja has a plan with zip code 99999 and internet"
LABELS = " ".join("O" if place % 2 else "name" for place in range(len(WORDS.split())))
TEXTS = (WORDS, *WORDS.split(), " ".join(WORDS.split()[::-1]))
ROWS = [{"text": text, "slots": LABELS, "intents": "O O O"} for text in TEXTS]


def _kinds():
    for module in pkgutil.iter_modules(policies.__path__):
        importlib.import_module(f"{policies.__name__}.{module.name}")
    return set(Policy.__subclasses__())


def _made(kind, **changed):
    """A policy with the first value of every argument but those that are given."""
    return kind(**{name: values[0] for name, values in VALUES[kind].items()} | changed)


def test_every_argument_of_every_kind_has_values():
    arguments = {kind: list(inspect.signature(kind).parameters) for kind in _kinds()}
    assert arguments == {kind: list(values) for kind, values in VALUES.items()}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, values in VALUES.items() for name in values])
def test_policies_of_one_digest_are_one_function(kind, name):
    made = [_made(kind, **{name: value}) for value in VALUES[kind][name]]
    said = [(policy.digest, [policy.redact(row) for row in ROWS]) for policy in made]
    for (one, does), (other, differs) in combinations(said, 2):
        assert one != other or does == differs
    assert len({str(does) for _, does in said}) > 1, "the values of the test change nothing"
    assert len({one for one, _ in said}) > 1


def test_the_order_of_kept_words_names_nothing_and_none_leave_the_digest_that_recipes_hold():
    assert len({_made(SlotPolicy, kept=kept).digest for kept in KEPT}) == len(KEPT) - 1
    for config in (PolicyConfig(), PolicyConfig(kind="slots", column="slots")):
        assert make_policy(config).digest == config.digest
        assert make_policy(config, ("USR:",)).digest != config.digest


@pytest.mark.parametrize("name", [field.name for field in fields(WordScores)])
def test_all_of_a_classifier_is_in_its_digest(name):
    value = getattr(SCORES, name)
    other = {
        dict: lambda: {word: len(value) - 1 - row for word, row in value.items()},
        np.ndarray: lambda: value + 1e-6,
        tuple: lambda: value[::-1],
    }[type(value)]()
    assert replace(SCORES, **{name: other}).digest != SCORES.digest


def test_a_prefix_that_the_policy_hides_is_refused(tmp_path):
    path = tmp_path / "words.yml"
    path.write_text("[password, swordfish, fish, zip code]")
    keywords, patterns = PolicyConfig.parse({"kind": "keywords", "file": str(path)}), PolicyConfig.parse({})
    hidden = [(keywords, prefix) for prefix in ("password swordfish", "USR: my Sword-Fish,", "USR: zip")]
    for config, prefix in (*hidden, (patterns, "USR 12345"), (patterns, "12 May")):
        with pytest.raises(ConfigError, match=r"^corpus\.join\.prefix has '.*', which the policy hides, and words of"):
            make_policy(config, tuple(prefix.split()))
        assert make_policy(config, ("USR:", "sys")).kept == {"USR:", "sys"}
