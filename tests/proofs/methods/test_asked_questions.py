"""Every caller of the gate, with made-up answers: another question is another charge, and the same one is not."""

import ast
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from small_jobs import small_privacy, write_profile
from toy_knowledge import ATTRIBUTES

import rayprivacy
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.blocks import match as matching
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import load_key
from rayprivacy.core.private import Private, digest_file, digest_json
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.generator import method as generator
from rayprivacy.methods.knowledge import counting
from rayprivacy.methods.knowledge import method as knowledge
from rayprivacy.methods.knowledge import plan as planned
from rayprivacy.methods.profile import cells
from rayprivacy.methods.profile import counting as profile_counting
from rayprivacy.methods.profile import method as profile
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.methods.santext import method as santext
from rayprivacy.methods.seqpate import method as seqpate
from rayprivacy.methods.seqpate.public_side import FIRST
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import Queries
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.release.gate import VoteManifest
from rayprivacy.release.histogram import SCALE
from rayprivacy.runs import figures
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.method import Output
from rayprivacy.runs.plan import Plan, Stage
from rayprivacy.tuning import heldout_loss as metric
from rayprivacy.tuning.space import MetricConfig

PACKAGE = Path(rayprivacy.__file__).parent
GATE = {"release_votes", "release_histogram", "release_figures", "release_counts", "release_file"}
TRAINING = {"noise_multiplier": 1.0, "steps": 2}
FORWARDS = {"runs/context.py"}  # whose functions of these names are how methods come to the gate


@dataclass
class Desk:
    """Where a caller works: one ledger, one corpus, and a run directory for each time that it asks."""

    folder: Path
    base: Path
    patch: pytest.MonkeyPatch
    ledger: Ledger
    corpus: str = digest_json("corpus")
    numbers: Any = field(default_factory=count)
    said: StringIO = field(default_factory=StringIO)
    lacking: list[list[int]] = field(default_factory=list)  # how many texts words lacked, by each match of texts

    def recipe(self, **blocks):
        data = {"corpus": {"user": "who"}, "model": {"base": str(self.base), "dtype": "float32"}, **blocks}
        return parse_recipe(data | {"privacy": small_privacy(self.folder) | data.get("privacy", {})})

    def run(self, recipe):
        out = self.folder / f"out-{next(self.numbers)}"
        return Run.open(out, recipe, resume=False, console=Console(file=self.said, width=500))

    def context(self, recipe, plan=None):
        run = self.run(recipe)
        plan = plan or method_of(run.recipe).planned(run.recipe)
        self.account(plan.protection)
        progress: Any = SimpleNamespace(show=lambda *_: None, expect=lambda *_: None)
        context = RunContext(run, plan, lambda: self.ledger, load_key(Path(recipe.privacy.key)), progress)
        context.corpus = SimpleNamespace(corpus_digest=lambda _: self.corpus, version="")  # type: ignore[assignment]
        self.patch.setattr(RunContext, "shard", lambda self: None)
        return context

    def account(self, protection):
        rule = "metric" if protection.kind is AccountKind.METRIC_LOCAL else "zcdp"
        budget = Budget(1000.0, 1e-6)
        more = {"threshold_delta": 5e-7} if rule == "zcdp" else {}
        terms = ("talk", protection.unit, protection.relation, budget, rule)
        self.ledger.ensure_account(*terms, kind=protection.kind, **more)

    def charges(self, release):
        return self.ledger.charges_of("talk", release)


def label_shares(desk, changed, bit):
    """The generator's control codes; a list of as many other values."""
    values = {"topic": ("cats", "cars" if changed else "dogs")}
    corpus, codes = {"user": "who", "labels": ["topic"]}, {"values": {"topic": ["cats", "dogs"]}}
    recipe = desk.recipe(method="generator", corpus=corpus, codes=codes, training=TRAINING)
    sums = np.array([9, 5, 2 * SCALE + bit], dtype=np.int64)
    desk.patch.setattr(generator, "label_sums", lambda *_: Private(sums))
    context = desk.context(recipe)
    generator._shares(context, Codes(CodesConfig(values=values), recipe.corpus.labels))
    return str(context.recipe.release_id)


def match_votes(desk, changed, bit):
    """The topics of other candidates, the same ones seen by another sentence model, and other words in a profile."""
    words = write_profile(desk.folder / "profile.json", "cat", "car" if changed == "words" else "dog")
    recipe = desk.recipe(method="seqpate", match={"topics": 2, "words": words})
    texts = [
        "my cat sleeps",
        "a dog chased it",
        "the car is red",
        "an engine and brakes" if changed == "candidates" else "new tyres",
    ]
    sums = np.full(2 + matching.LENGTHS + 3, SCALE, dtype=np.int64)
    sums[0] += bit
    desk.patch.setattr(matching, "shape_votes", lambda *_: Private(sums))
    if changed == "model":
        desk.patch.setattr(SentenceModel, "digest", digest_json("another"))
    context = desk.context(recipe)

    def opened(_context, path, _words, lacking, _codes):  # nothing: there is no model to write it
        desk.lacking.append(lacking.tolist())
        return pq.read_table(path).slice(0, 0)

    desk.patch.setattr(matching, "opened", opened)
    pq.write_table(pa.table({"text": texts}), context.run.public("candidates.parquet"))
    matching.match_texts(context, recipe.match, 2)
    return str(context.recipe.release_id)


def teachers_votes(desk, changed, bit):
    """The first round of SeqPATE: the queries, the sentences they point into, the teachers, and how they read."""
    recipe = desk.recipe(method="seqpate", teachers={"count": 5}, votes={"queries": 4, "top_k": 3, "clip": 0.2})
    context, asked, candidates = desk.context(recipe), [4, 3], torch.arange(12).reshape(4, 3)
    centre = torch.full(asked, 1 / 3) if changed != "centre" else torch.tensor([[0.5, 0.25, 0.25]] * 4)
    queries = Queries(
        hidden=torch.ones(4, 2) * (2 if changed == "hidden" else 1),
        candidates=candidates + (changed == "candidates"),
        allowed=torch.tensor([[True, True, changed != "allowed"]] * 4),
        centre=centre,
        context=torch.zeros(4, 2, dtype=torch.int64) + (changed == "context"),
    )
    FIRST.rows(context.run).write_bytes(b"other sentences" if changed == "rows" else b"sentences")
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1 + (changed == "words")}, special_tokens_map={})
    spec = SimpleNamespace(workspace=SimpleNamespace(recipe="others" if changed == "teachers" else "these"))
    sums = np.zeros((4, 3), dtype=np.int64)
    sums[0, 0] += bit
    pool = SimpleNamespace(vote=lambda *_: (Private(sums), VoteManifest(tuple(range(5)))))
    desk.patch.setattr(seqpate.public_side, "round_queries", lambda *_: queries)
    desk.patch.setattr(seqpate, "_distilled", lambda *_: None)
    backbone: Any = SimpleNamespace(tokenizer=tokenizer)
    seqpate._Asking(context, backbone, [], spec, pool).round(0, None, None)  # type: ignore[arg-type]
    return str(context.recipe.release_id)


def trial_loss(desk, changed, bit):
    """The charged metric of a search: other weights of the released model, or another tokenizer beside them."""
    recipe = desk.recipe(method="generator", corpus={"user": "who", "holdout": 0.2}, training=TRAINING)
    run, config = desk.run(recipe), MetricConfig(name="heldout_loss", noise_multiplier=0.5)
    model = run.root / "model"
    shutil.copytree(desk.base, model)
    if changed == "weights":
        weights = {name: each.clone() for name, each in load_file(model / "model.safetensors").items()}
        next(iter(weights.values())).view(-1)[0] += 1e-3
        save_file(weights, model / "model.safetensors", {"format": "pt"})
    if changed == "tokenizer":
        rules = (path := model / "tokenizer.json").read_text()
        path.write_text(rules.replace('"add_prefix_space": false', '"add_prefix_space": true'))
    desk.account(Protection(PrivacyUnit.USER))
    desk.patch.setattr(metric, "read_manifest", lambda _: SimpleNamespace(corpus_digest=lambda _: desk.corpus))
    desk.patch.setattr(metric, "_sums", lambda *_: np.array([300 * SCALE + bit, 500 * SCALE], dtype=np.int64))
    metric.heldout_loss(run, config, 1)
    return metric.report_release(config, run.recipe, 1)


def shown_figures(desk, changed, bit):
    """Figures that may be published: of another released model, or beside other synthetic text."""
    return _shown(desk, changed, bit)[0]


def _shown(desk, changed, bit):
    wanted = {"share": 0.5, "of": ["perplexity", "copied"]}
    recipe = desk.recipe(method="generator", corpus={"user": "who"}, training=TRAINING, figures=wanted)
    desk.patch.setattr(figures, "ABOVE", 4.0 if changed == "bound" else 3.0)
    context = desk.context(recipe)
    shutil.copytree(desk.base, context.run.root / "model")
    if changed == "weights":
        path = context.run.root / "model" / "model.safetensors"
        weights = {name: each.clone() for name, each in load_file(path).items()}
        next(iter(weights.values())).view(-1)[0] += 1e-3
        save_file(weights, path, {"format": "pt"})
    texts = ["my cat sleeps", "a dog" if changed == "text" else "a car"]
    pq.write_table(pa.table({"text": texts}), context.run.root / "synthetic.parquet")
    context.base = load_backbone(recipe.model)
    sums = np.array([3000, 100, -100, 3000, -100]) * SCALE  # of held-out users, and of those of training
    sums[[0, 3]] += bit
    desk.patch.setattr(figures, "figure_sums", lambda *_: Private(sums))
    return str(context.recipe.release_id), figures.figures_of(context, method_of(recipe), Output())


def sanitised_file(desk, changed, bit):
    """SanText's file, drawn from another vocabulary; of equal words, say."""
    recipe = desk.recipe(method="santext", privacy={"composition": "metric", "epsilon": 500.0})
    vocabulary = SimpleNamespace(digest=digest_json(["vocabulary", changed]), words=("a", "b"))
    found = SimpleNamespace(vocabulary=vocabulary, mechanism=None, keep=0.5)
    desk.patch.setattr(santext.mechanisms, "confirmed", lambda each: each)
    desk.patch.setattr(santext, "sanitise_parts", lambda *_: iter(()))
    desk.patch.setattr(santext, "write_release", lambda _job, _parts, path: path.write_bytes(b"equal words"))
    protection = Protection(PrivacyUnit.USER, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL)
    stage = Stage(santext.plan.WORDS, "private text", charges=(MetricLocalDpEvent(1.0, 1.0, 1),), mechanism=found)
    context = desk.context(recipe, Plan((stage,), protection, "", (), protects="words"))
    santext.run(context)
    return str(context.recipe.release_id)


def answers_counted(desk, changed, bit):
    """Names by another list of words, or by other stems; answers about names; and with more that is settled."""
    recipe = desk.recipe(method="knowledge", knowledge={"attributes": ATTRIBUTES})
    names = ("mirak", "zorvel") if changed == "names" else None
    settled = {("mirak", "type")} if changed == "settled" else set()
    desk.patch.setattr(counting, "english", lambda: frozenset({"a", "b" if changed == "words" else "c"}))
    desk.patch.setattr(counting, "version", lambda _: "2" if changed == "stems" else "1")
    desk.patch.setattr(counting, "counted", lambda *_: Private({"key": 9 + bit}))
    asked = counting.Asked(recipe.knowledge, names, settled)
    knowledge._released(desk.context(recipe), planned.ANSWERS if names else planned.NAMES, asked)
    return str(recipe.release_id)


def users_counted(desk, changed, bit):
    """A profile by cells that are cut in another way, or of tokens of another kind."""
    recipe = desk.recipe(method="profile", profile={"keywords": 0})
    desk.patch.setattr(cells, "RULES", "others" if changed == "rules" else "these")
    desk.patch.setattr(profile_counting, "tokenizer_of", lambda _: SimpleNamespace(get_vocab=lambda: {changed: 1}))
    context = desk.context(recipe)
    sums = np.full(context.plan.charged[0].mechanism.cells, 9 * SCALE, np.int64)
    sums[0] += bit
    desk.patch.setattr(profile, "count_users", lambda *_: (Private(sums), Private({})))
    profile.run(context)
    return str(recipe.release_id)


CASES: dict[str, tuple[Callable[[Desk, str, int], str], str]] = {  # and what changes a question
    "methods/generator/method.py _shares": (label_shares, "values"),
    "blocks/match.py match_texts": (match_votes, "candidates model words"),
    "methods/seqpate/method.py round": (teachers_votes, "hidden candidates allowed centre context rows words teachers"),
    "tuning/heldout_loss.py heldout_loss": (trial_loss, "weights tokenizer"),
    "runs/figures.py figures_of": (shown_figures, "weights text bound"),
    "methods/santext/method.py run": (sanitised_file, "vocabulary"),
    "methods/knowledge/method.py _released": (answers_counted, "words stems names settled"),
    "methods/profile/method.py run": (users_counted, "rules tokens"),
}
CHANGES = [(caller, changed) for caller, (_, changes) in CASES.items() for changed in changes.split()]


@pytest.fixture
def desk(tmp_path, tiny_base, monkeypatch):
    return Desk(tmp_path, tiny_base, monkeypatch, Ledger.open(f"sqlite:///{tmp_path}/ledger.db"))


def test_every_caller_of_the_gate_has_a_case():
    def asks(node):
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GATE

    callers = {
        f"{path.relative_to(PACKAGE)} {function.name}"
        for path in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and any(map(asks, ast.walk(function)))
        if str(path.relative_to(PACKAGE)) not in FORWARDS
    }
    assert callers == set(CASES)


@pytest.mark.parametrize(("caller", "changed"), CHANGES)
def test_another_question_with_an_equal_answer_is_another_charge_and_draw(desk, caller, changed):
    ask = CASES[caller][0]
    release = ask(desk, "", 0)
    assert len(desk.charges(release)) == 1
    assert ask(desk, changed, 0) == release, "the recipe says the same"
    first, second = desk.charges(release)
    assert first.input_digest != second.input_digest


@pytest.mark.parametrize("caller", CASES)
def test_the_same_question_of_one_corpus_is_one_charge_whatever_is_answered(desk, caller):
    ask = CASES[caller][0]
    release = ask(desk, "", 0)
    (charge,) = desk.charges(release)
    stored = desk.ledger.output(charge)
    with suppress(ReleaseError):  # a file that lies in another run directory is not made again
        ask(desk, "", 1)
    assert [desk.ledger.output(each) for each in desk.charges(release)] == [stored]
    ask(replace(desk, corpus=digest_json("another")), "", 0)
    assert len({charge.input_digest for charge in desk.charges(release)}) == 2


def test_a_run_goes_on_with_the_released_words_that_it_began_with_and_names_them(desk):
    path = desk.folder / "profile.json"
    recipe = desk.recipe(method="seqpate", match={"words": write_profile(path, "cat", "dog")})
    context = desk.context(recipe)
    assert matching._words(context, recipe.match) == ("cat", "dog"), "of the profile, and nothing else was read"
    (said,) = context.public_inputs
    words = "the words that users voted for are those of profile-0123456789abcdef"
    assert said == f"Public input: {words}, whose file has digest {digest_file(path)}."
    write_profile(path, "cat", "car")
    with pytest.raises(ConfigError, match=r"^the profile of .* changed since the run began: bring the former back"):
        matching._words(context, recipe.match)
    write_profile(path, "cat", "dog")
    assert matching._words(context, recipe.match) == ("cat", "dog")
    assert matching._words(context, recipe.match.model_copy(update={"words": None})) == ()


def test_words_that_are_written_besides_are_those_that_the_released_votes_lack(desk):
    released = np.array([9, 9, *[1] * matching.LENGTHS, 2, 2, 9]) / 10
    desk.patch.setattr(RunContext, "release_histogram", lambda *_, **__: SimpleNamespace(value=released))
    for bit in (0, 50 * SCALE):
        match_votes(desk, "", bit)
    first, second = desk.lacking
    assert first == second, "the sums are others, and what was released of them is not"
    assert first[1] > 0


def test_figures_are_made_of_nothing_but_what_the_ledger_stored(desk):
    _, first = _shown(desk, "", 0)
    assert {row["name"] for row in first["rows"]} >= {"perplexity of generator, held-out users", "users of training"}
    assert _shown(desk, "", 500 * SCALE)[1] == first, "the sums of another machine, say"


def test_a_release_that_was_named_by_its_answer_is_paid_anew_and_said_to_be(desk):
    """Charges of before 0.6.0 stay what they are, and count; what they were an answer to, nobody can say."""
    (charge,), answer = desk.charges(label_shares(desk, "", 0)), digest_json("an answer")
    old = desk.ledger.reserve("talk", "earlier", answer, charge.event, protection=Protection(PrivacyUnit.USER))
    desk.ledger.commit_output(desk.ledger.start(old), b"old")
    desk.patch.setattr(type(parse_recipe({"method": "generator"})), "release_id", "earlier")
    assert "charges like this one" not in desk.said.getvalue()
    for _ in range(2):
        label_shares(desk, "", 0)
    assert len(desk.charges("earlier")) == 2
    assert desk.ledger.output(old) == b"old"
    desk.ledger.verify()
    sentence = "account 'talk' has 2 charges like this one for the release, and a run makes 1: it was charged before"
    assert desk.said.getvalue().count(sentence) == 2, "once in each run"
