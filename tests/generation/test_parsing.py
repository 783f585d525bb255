"""A parser learns from public pairs, and reads private text one record at a time, whatever it holds."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_trees import SCHEMA, request

from rayprivacy.core.console import nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.two_stage import parser as parsing
from rayprivacy.methods.two_stage.parser import UNREAD, Parser, asked, fitted_parser, split_pairs
from rayprivacy.models.backbone import Backbone, load_backbone, model_digest
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig, ParserConfig
from rayprivacy.structures.grammar import Grammar
from rayprivacy.structures.trees import names

pytestmark = pytest.mark.usefixtures("one_thread")
RULES = Grammar(json.dumps(SCHEMA), "json")
CONFIG = ParserConfig(source="public", steps=80, batch=16, max_tokens=16, learning_rate=1e-2)
PAIRS = [request(random.Random(seed)) for seed in range(60)]
STRANGE = ["", " ", "\x00", "play " * 2000, "parse play\n{", "\ud83c\udfb6", '{"intent": "Stop"', "stop it\nstop it"]


@pytest.fixture(scope="module")
def learnt(tiny_backbone: Backbone, one_thread: None) -> tuple[Any, dict[str, float]]:
    pytest.importorskip("xgrammar")
    return fitted_parser(tiny_backbone, PAIRS, CONFIG, 64, nobody)


@pytest.fixture
def parser(learnt: tuple[Any, dict[str, float]], tiny_backbone: Backbone) -> Parser:
    return Parser(replace(tiny_backbone, model=learnt[0]), 16, 64, RULES)


def test_it_learns_public_pairs(learnt: Any, parser: Parser, tiny_backbone: Backbone) -> None:
    assert learnt[1]["loss_after"] < 0.3 * learnt[1]["loss_before"]
    held, others = split_pairs(PAIRS)
    assert len(held) == 6
    assert sorted(held + others) == sorted(PAIRS)
    assert sum(parser(said) == tree for said, tree in PAIRS[:8]) >= 6
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())


def test_equal_pairs_give_equal_bits(tiny_backbone: Backbone) -> None:
    short = CONFIG.model_copy(update={"steps": 3})
    (one, figures), (other, _) = (fitted_parser(tiny_backbone, PAIRS[:20], short, 64, nobody) for _ in range(2))
    assert model_digest(one) == model_digest(other) != tiny_backbone.digest
    assert figures["loss_after"] < figures["loss_before"]
    with pytest.raises(ConfigError, match=r"parser\.learning_rate is 1e\+30, and training diverges"):
        fitted_parser(tiny_backbone, PAIRS, short.model_copy(update={"learning_rate": 1e30}), 64, nobody)


def test_the_tree_of_a_record_depends_on_no_other_one(parser: Parser) -> None:
    """Neither on records before it, nor on those that are read together: to the last bit there is no other one."""
    said = [each for each, _ in PAIRS[:4]] + STRANGE
    first = [parser(each) for each in said]
    assert [parser(each) for each in reversed(said)][::-1] == first
    assert all(tree == UNREAD or names(tree) is not None for tree in first), "a tree, or the public constant"


def test_what_is_no_whole_tree_is_the_public_constant(parser: Parser) -> None:
    shorter = Parser(parser.backbone, 16, 3, RULES)
    assert {shorter(said) for said, _ in PAIRS[:3]} == {UNREAD}, "no tree is complete in three tokens"
    free = Parser(parser.backbone, 16, 64)
    assert all(tree == UNREAD or names(tree) is not None for tree in map(free, STRANGE[:3]))


def test_a_record_that_breaks_the_model_shows_nowhere(
    parser: Parser, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("my secret pin is 1234")

    monkeypatch.setattr(parsing, "greedy", broken)
    assert parser("my secret pin is 1234") == UNREAD
    said = capfd.readouterr()
    assert "1234" not in said.out + said.err + caplog.text
    with pytest.raises(RuntimeError):
        parser.read("public text")  # where nothing is private, a fault is told


def test_only_the_first_tokens_of_an_utterance_are_read(parser: Parser) -> None:
    tokens = parser.backbone
    assert asked("play home", tokens, 16) == "parse play home\n"
    long = "play home " * 50
    assert len(tokens.tokenizer.encode(asked(long, tokens, 16))) < 28
    assert parser(long) == parser(long + "by the band")


def test_a_saved_parser_reads_the_same(parser: Parser, tmp_path: Path) -> None:
    save_model(parser.backbone.model, parser.backbone.tokenizer, tmp_path / "parser", "release", "A test.")
    again = Parser(load_backbone(ModelConfig(base=str(tmp_path / "parser"), dtype="float32")), 16, 64, RULES)
    assert [again(said) for said, _ in PAIRS[:3]] == [parser(said) for said, _ in PAIRS[:3]]
