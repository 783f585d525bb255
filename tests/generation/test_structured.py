"""Texts that follow a grammar: which are accepted, and what is done with those that are not."""

import random
from functools import partial
from typing import Any

import pytest
from small_trees import DAYS, FUNCTIONS, pairs

from rayprivacy.corpus.grammar import lispress
from rayprivacy.corpus.trees import parse, written
from rayprivacy.generation.decode import sample
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.generation.structured import MASKED_DRAWS, Matcher, Structure, StructuredWriter

pytest.importorskip("xgrammar")
GRAMMAR = lispress([*FUNCTIONS, *DAYS.values()])
# Strings end with the next token but one, and lists are short: a random model comes to an end.
SHORT = 'root ::= "(" name (" " "(" name ")")? ")"\nname ::= "Yield" | "Find"\n'
CONFIG = SamplingConfig(max_tokens=12, seed=5)


@pytest.fixture(scope="module")
def matcher(tiny_backbone: Any) -> Matcher:
    return Matcher(GRAMMAR, tiny_backbone, tiny_backbone.head.shape[0])


def test_real_trees_over_listed_names_are_accepted(matcher: Matcher) -> None:
    trees = [tree for _, tree in pairs(1, 50)]
    assert all(map(matcher.accepts, trees))
    assert all(written(parse(tree)) == tree for tree in trees)
    more = ["(let (x0 (Find)) (do (Yield x0)))", "(Find -2.5L true x12 :limit 3)", "(^((A (B C))) Any (Yield))"]
    assert all(map(matcher.accepts, more))


@pytest.mark.parametrize(
    "text",
    ["", "(", "Yield", "(Yield", "(Yield))", "(Steal)", "(Yield  (Find))", "(Yield) (Find)", '(Yield "a)', "(Yield )"],
)
def test_everything_else_is_not(matcher: Matcher, text: str) -> None:
    assert not matcher.accepts(text)


def test_a_broken_tree_is_not(matcher: Matcher) -> None:
    """One character less, or one more, of real trees: what is accepted is a tree still."""
    dice = random.Random(1)
    for _, tree in pairs(2, 60):
        at = dice.randrange(len(tree))
        for broken in (tree[:at] + tree[at + 1 :], tree[:at] + "(" + tree[at:]):
            if matcher.accepts(broken):
                assert written(parse(broken)) == broken


def _writer(backbone: Any, structure: Structure) -> StructuredWriter:
    def continued(masks: Any, prompts: list[str], config: SamplingConfig) -> list[str]:
        documents = sample(backbone.model, backbone, prompts, config, masks=masks)
        return [backbone.text_after(prompt, ids) for prompt, ids in zip(prompts, documents, strict=True)]

    under_masks = lambda matcher: partial(continued, matcher.masks)  # noqa: E731
    return StructuredWriter(structure, backbone, backbone.head.shape[0], partial(continued, None), under_masks)


def test_a_model_that_knows_no_grammar_follows_it_under_masks(tiny_backbone: Any) -> None:
    writer = _writer(tiny_backbone, Structure(SHORT, free_draws=2))
    found = writer([""] * 16, CONFIG)
    kept = [text for text, reason in found if reason is None]
    matcher = Matcher(SHORT, tiny_backbone, tiny_backbone.head.shape[0])
    assert len(kept) > 8
    assert all(map(matcher.accepts, kept))
    assert len(set(kept)) > 1
    assert writer.counts["free_draws"] == 32
    assert writer.counts["free_draws_accepted"] == 0
    assert writer.counts["masked_draws"] >= 16
    assert writer.counts["left_out"] == 16 - len(kept)
    assert _writer(tiny_backbone, Structure(SHORT, free_draws=2))([""] * 16, CONFIG) == found


def test_what_does_not_end_in_time_is_drawn_again_and_then_left_out(tiny_backbone: Any) -> None:
    writer = _writer(tiny_backbone, Structure(SHORT))
    found = writer([""] * 3, CONFIG.model_copy(update={"max_tokens": 2}))
    assert [reason for _, reason in found] == ["incomplete"] * 3
    assert (writer.counts["masked_draws"], writer.counts["left_out"]) == (12, 3)


def test_without_constraints_every_text_is_kept_and_counted(tiny_backbone: Any) -> None:
    writer = _writer(tiny_backbone, Structure(SHORT, constrained=False))
    found = writer([""] * 4, CONFIG)
    assert [reason for _, reason in found] == [None] * 4
    assert dict(writer.counts) == {"free_draws": 4, "free_draws_accepted": 0}
    assert _writer(tiny_backbone, Structure(None, constrained=False))([""] * 4, CONFIG) == found


def test_what_is_accepted_is_drawn_no_more(tiny_backbone: Any) -> None:
    """Free draws are repeated for the rest alone, so that what is kept of them is the model's own distribution."""
    asked: list[int] = []

    def freely(prompts: list[str], config: SamplingConfig) -> list[str]:
        asked.append(len(prompts))
        return ["(Yield)" if number % 2 else "(Yie" for number in range(len(prompts))]

    writer = StructuredWriter(Structure(SHORT, free_draws=3), tiny_backbone, 400, freely, lambda _: freely)
    found = writer([""] * 8, CONFIG)
    assert [(text, reason) for text, reason in found if reason is None] == [("(Yield)", None)] * 7
    assert asked == [8, 4, 2, *[1] * MASKED_DRAWS]
    assert writer.counts["free_draws_accepted"] == 4 + 2 + 1
    assert writer.counts["left_out"] == 1
