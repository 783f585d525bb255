"""Texts that follow a grammar; and a parser that learns from public pairs and reads one record at a time."""

import json
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from benchmark_modules import benchmark
from small_trees import DAYS, FUNCTIONS, SCHEMA, pairs, request

from rayprivacy.core.console import nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.decode import sample
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.generation.text_writers import MASKED_DRAWS, Structure, StructuredWriter
from rayprivacy.methods.two_stage import parser as parsing
from rayprivacy.methods.two_stage.parser import UNREAD, VERB, Parser, fitted_parser
from rayprivacy.models.asked import asked, split_pairs
from rayprivacy.models.backbone import load_backbone, model_digest
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig, ParserConfig
from rayprivacy.structures.grammar import Grammar, lispress
from rayprivacy.structures.masks import LlguidanceMatcher, XgrammarMatcher, check_grammar
from rayprivacy.structures.trees import names, parse

written = benchmark("parsing_figures").written
pytest.importorskip("xgrammar")
pytest.importorskip("llguidance")
GRAMMAR = Grammar(lispress([*FUNCTIONS, *DAYS.values()]))
# Strings end with the next token but one, and lists are short: a random model comes to an end.
SHORT = Grammar('root ::= "(" name (" " "(" name ")")? ")"\nname ::= "Yield" | "Find"\n')
CONFIG = SamplingConfig(max_tokens=12, seed=5)


BOTH = pytest.mark.parametrize("kind", [XgrammarMatcher, LlguidanceMatcher])


def _object(properties, *required):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT = {"type": "string"}
PLAY = _object({"intent": {"const": "Play"}, "slots": _object({"artist": TEXT, "track": TEXT})}, "intent", "slots")
REQUESTS = Grammar(json.dumps({"anyOf": [PLAY, _object({"intent": {"enum": ["Stop", "Go on"]}}, "intent")]}), "json")


@pytest.fixture(scope="module", params=[XgrammarMatcher, LlguidanceMatcher])
def matcher(request, tiny_backbone):
    return request.param(GRAMMAR, tiny_backbone, tiny_backbone.head.shape[0])


def test_a_broken_tree_is_not_accepted_and_real_ones_over_listed_names_are(matcher):
    """One character less, or one more, of real trees: what is accepted is a tree still."""
    bad = ["", "(", "Yield", "(Yield", "(Yield))", "(Steal)", "(Yield  (Find))", "(Yield) (Find)", '(Yield "a)']
    assert [each for each in [*bad, "(Yield )"] if matcher.accepts(each)] == []
    dice = random.Random(1)
    for _, tree in pairs(2, 60):
        at = dice.randrange(len(tree))
        for broken in (tree[:at] + tree[at + 1 :], tree[:at] + "(" + tree[at:]):
            if matcher.accepts(broken):
                assert written(parse(broken)) == broken
    # Real trees over listed names are.
    trees = [tree for _, tree in pairs(1, 50)]
    assert all(map(matcher.accepts, trees))
    assert all(written(parse(tree)) == tree for tree in trees)
    more = ["(let (x0 (Find)) (do (Yield x0)))", "(Find -2.5L true x12 :limit 3)", "(^((A (B C))) Any (Yield))"]
    assert all(map(matcher.accepts, more))


@BOTH
@pytest.mark.parametrize(
    ("grammar", "begun"), [(GRAMMAR, '(Yield (?= "my'), (REQUESTS, '{"intent": "Play", "slots": {"artist": "my')]
)
def test_inside_a_string_no_special_token_may_come(kind, grammar, begun, tiny_backbone):
    """A string may hold any character, but a text is not to hold the name of a token that ends generation."""
    tokens = tiny_backbone.tokenizer.encode(begun, add_special_tokens=False)
    vocabulary = tiny_backbone.head.shape[0]
    matcher = kind(grammar, tiny_backbone, vocabulary)
    masks = matcher.masks()
    for place, token in enumerate(tokens):
        assert masks(torch.tensor([tokens[:place]]), torch.zeros(1, vocabulary))[0, token] == 0
    left = masks(torch.tensor([tokens]), torch.zeros(1, vocabulary))[0].isfinite()
    assert left.sum() > 100
    assert not left[[tiny_backbone.start, tiny_backbone.end]].any()


@BOTH
def test_json_follows_its_schema_as_python_writes_it(kind, tiny_backbone):
    matcher = kind(REQUESTS, tiny_backbone, tiny_backbone.head.shape[0])
    slots = {"artist": "the band", "track": 'a "b" \\ é'}
    good = [{"intent": "Play", "slots": slots}, {"intent": "Play", "slots": {}}, {"intent": "Go on"}]
    assert all(matcher.accepts(json.dumps(each, ensure_ascii=False)) for each in good)
    bad = ['{"intent": "Play"}', '{"intent": "Steal"}', '{"intent":"Stop"}', '{"intent": "Stop"} ', '{"intent": "Stop"']
    bad += ['{"intent": "Stop", "slots": {}}', '{"intent": "Play", "slots": {"track": "b", "artist": "a"}}']
    bad += ['{"intent": "Play", "slots": {"artist": 1}}', ""]
    assert [each for each in bad if matcher.accepts(each)] == []
    assert REQUESTS.constants == {"Play", "Stop", "Go on"}
    short = Grammar('{"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}', "json")
    bounded = kind(short, tiny_backbone, tiny_backbone.head.shape[0])
    assert bounded.accepts('{"a": "b c"}')
    assert not bounded.accepts('{"a": "b\x02c"}'), "a control character, which the rules of xgrammar let pass"


def test_both_packages_leave_the_same_texts(tiny_backbone):
    """Along random walks, token by token; of a text that is forced, llguidance leaves the usual way of cutting it."""
    dice, vocabulary = random.Random(4), tiny_backbone.head.shape[0]
    for grammar in (SHORT, REQUESTS):
        masks = [kind(grammar, tiny_backbone, vocabulary).masks() for kind in (XgrammarMatcher, LlguidanceMatcher)]
        walked = [tiny_backbone.start]
        for _ in range(25):
            ids = torch.tensor([walked])
            one, other = (mask(ids, torch.zeros(1, vocabulary))[0].isfinite() for mask in masks)
            assert other.any()
            assert not (other & ~one).any()
            assert one.equal(other) or other.sum() == 1
            allowed = other.nonzero().flatten().tolist()
            walked.append(dice.choice(allowed))
            if walked[-1] == tiny_backbone.end:
                break


@pytest.mark.parametrize("missing", ["xgrammar", "llguidance"])
def test_rules_that_are_none_are_one_sentence(missing, monkeypatch):
    monkeypatch.setattr("rayprivacy.structures.masks._installed", lambda package: package != missing)
    for good in (GRAMMAR, SHORT, REQUESTS):
        check_grammar(good, "parses.rules")
    wrong = [Grammar("rule ::= missing"), Grammar('{"type": "nonsense"}', "json"), Grammar('{"$ref": "#/x"}', "json")]
    for grammar in wrong:
        with pytest.raises(ConfigError, match=r"^parses\.rules holds rules that cannot be used \(.+\): give .*\.$"):
            check_grammar(grammar, "parses.rules")
    monkeypatch.setattr("rayprivacy.structures.masks._installed", lambda package: False)
    with pytest.raises(ConfigError, match=r"rayprivacy\[grammar\]"):
        check_grammar(SHORT, "parses.rules")


def _writer(backbone, **structure):
    def continued(masks, prompts, config):
        documents = sample(backbone.model, backbone, prompts, config, masks=masks)
        return [backbone.text_after(prompt, ids) for prompt, ids in zip(prompts, documents, strict=True)]

    under_masks = lambda matcher: partial(continued, matcher.masks)  # noqa: E731
    return StructuredWriter(
        Structure(**({"grammar": SHORT} | structure)),
        backbone,
        backbone.head.shape[0],
        partial(continued, None),
        under_masks,
    )


@BOTH
def test_a_model_that_knows_no_grammar_follows_it_under_masks(kind, tiny_backbone, monkeypatch):
    if kind is LlguidanceMatcher:  # as where xgrammar is not installed
        monkeypatch.setattr("rayprivacy.structures.masks._installed", lambda package: package == "llguidance")
    writer = _writer(tiny_backbone, free_draws=2)
    found = writer([""] * 16, CONFIG)
    kept = [text for text, reason in found if reason is None]
    matcher = XgrammarMatcher(SHORT, tiny_backbone, tiny_backbone.head.shape[0])
    assert len(kept) > 8
    assert all(map(matcher.accepts, kept))
    assert len(set(kept)) > 1
    assert (writer.counts["free_draws"], writer.counts["free_draws_accepted"]) == (32, 0)
    assert writer.counts["masked_draws"] >= 16
    assert writer.counts["left_out"] == 16 - len(kept)
    assert _writer(tiny_backbone, free_draws=2)([""] * 16, CONFIG) == found


def test_what_does_not_end_in_time_is_left_out_and_draws_are_those_asked_for(tiny_backbone):
    writer = _writer(tiny_backbone)
    found = writer([""] * 3, CONFIG.model_copy(update={"max_tokens": 2}))
    assert [reason for _, reason in found] == ["incomplete"] * 3
    assert (writer.counts["masked_draws"], writer.counts["left_out"]) == (12, 3)
    # Without free draws every text is drawn under masks.
    writer = _writer(tiny_backbone, free_draws=0)
    writer.freely = lambda prompts, config: pytest.fail("nothing is sampled freely")
    assert [reason for _, reason in writer([""] * 8, CONFIG)].count(None) > 4
    assert set(writer.counts) == {"masked_draws", "left_out"}
    # Without constraints every text is kept and counted.
    writer = _writer(tiny_backbone, constrained=False)
    found = writer([""] * 4, CONFIG)
    assert [reason for _, reason in found] == [None] * 4
    assert dict(writer.counts) == {"free_draws": 4, "free_draws_accepted": 0}
    assert _writer(tiny_backbone, grammar=None, constrained=False)([""] * 4, CONFIG) == found


def test_what_is_accepted_is_drawn_no_more(tiny_backbone):
    """Free draws are repeated for the rest alone, so that what is kept of them is the model's own distribution."""
    asked: list[int] = []

    def freely(prompts, config):
        asked.append(len(prompts))
        return ["(Yield)" if number % 2 else "(Yie" for number in range(len(prompts))]

    writer = StructuredWriter(Structure(SHORT, free_draws=3), tiny_backbone, 400, freely, lambda _: freely)
    found = writer([""] * 8, CONFIG)
    assert [text for text, reason in found if reason is None] == ["(Yield)"] * 7
    assert asked == [8, 4, 2, *[1] * MASKED_DRAWS]
    assert writer.counts["free_draws_accepted"] == 4 + 2 + 1
    assert writer.counts["left_out"] == 1


RULES = Grammar(json.dumps(SCHEMA), "json")
PARSING = ParserConfig(source="public", steps=120, batch=12, max_tokens=16, learning_rate=1e-2)
PAIRS = [request(random.Random(seed)) for seed in range(60)]
STRANGE = ["", " ", "\x00", "play " * 300, "parse play\n{", "\ud83c\udfb6", '{"intent": "Stop"', "stop it\nstop it"]


@pytest.fixture(scope="module")
def learnt(tiny_backbone, one_thread):
    pytest.importorskip("xgrammar")
    return fitted_parser(tiny_backbone, PAIRS, PARSING, 64, nobody)


@pytest.fixture
def parser(learnt, tiny_backbone):
    return Parser(replace(tiny_backbone, model=learnt[0]), 16, 64, RULES)


def test_it_learns_public_pairs(learnt, parser, tiny_backbone):
    assert learnt[1]["loss_after"] < 0.3 * learnt[1]["loss_before"]
    held, others = split_pairs(PAIRS)
    assert len(held) == 6
    assert sorted(held + others) == sorted(PAIRS)
    assert sum(parser(said) == tree for said, tree in PAIRS[:8]) >= 6
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())


def test_equal_pairs_give_equal_bits(tiny_backbone):
    short = PARSING.model_copy(update={"steps": 3})
    (one, figures), (other, _) = (fitted_parser(tiny_backbone, PAIRS[:20], short, 64, nobody) for _ in range(2))
    assert model_digest(one) == model_digest(other) != tiny_backbone.digest
    assert figures["loss_after"] < figures["loss_before"]
    with pytest.raises(ConfigError, match=r"parser\.learning_rate is 1e\+30, and training diverges"):
        fitted_parser(tiny_backbone, PAIRS, short.model_copy(update={"learning_rate": 1e30}), 64, nobody)


def test_the_tree_of_a_record_depends_on_no_other_one(parser):
    """Neither on records before it, nor on those that are read together: to the last bit there is no other one."""
    said = [each for each, _ in PAIRS[:4]] + STRANGE
    first = [parser(each) for each in said]
    assert [parser(each) for each in reversed(said)][::-1] == first
    assert all(tree == UNREAD or names(tree) is not None for tree in first), "a tree, or the public constant"
    # What is no whole tree is the public constant.
    shorter = Parser(parser.backbone, 16, 3, RULES)
    assert {shorter(said) for said, _ in PAIRS[:3]} == {UNREAD}, "no tree is complete in three tokens"
    free = Parser(parser.backbone, 16, 64)
    assert all(tree == UNREAD or names(tree) is not None for tree in map(free, STRANGE[:3]))


def test_a_record_that_breaks_the_model_shows_nowhere(parser, monkeypatch, capfd, caplog):
    def broken(*_, **__):
        raise RuntimeError("my secret pin is 1234")

    monkeypatch.setattr(parsing, "greedy", broken)
    assert parser("my secret pin is 1234") == UNREAD
    said = capfd.readouterr()
    assert "1234" not in said.out + said.err + caplog.text
    with pytest.raises(RuntimeError):
        parser.read("public text")  # where nothing is private, a fault is told


def test_only_first_tokens_are_read_and_a_saved_parser_reads_the_same(parser, tmp_path):
    save_model(parser.backbone.model, parser.backbone.tokenizer, tmp_path / "parser", "release", "A test.")
    again = Parser(load_backbone(ModelConfig(base=str(tmp_path / "parser"), dtype="float32")), 16, 64, RULES)
    assert [again(said) for said, _ in PAIRS[:3]] == [parser(said) for said, _ in PAIRS[:3]]
    assert asked(VERB, "play home", parser.backbone, 16) == "parse play home\n"
    long = "play home " * 50
    assert len(parser.backbone.tokenizer.encode(asked(VERB, long, parser.backbone, 16))) < 28
    assert parser(long) == again(long + "by the band")
