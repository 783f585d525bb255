"""Tables of benchmarks: figures of a parser, leaks between domains, frozen layers, and the table of taggers."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from benchmark_modules import BENCHMARKS, benchmark
from scipy import stats
from small_jobs import sentence
from small_tagger import labelled
from transformers import BertModel

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.policies.classifier import ClassifierPolicy, train_scores
from rayprivacy.policies.words import KeywordPolicy

SNIPS = {"eat": "PlayMusic", "go": "GetWeather", "B-food": "B-artist", "B-place": "B-city"}


def test_figures_of_a_parser_by_hand():
    parsing_figures = benchmark("parsing_figures").parsing_figures
    gold = ['(A (B "lunch") (B 1))', "(A)", '{"intent": "Play", "slots": {"track": "x"}}', "(A (x3 (B)))"]
    read = ['(A (B "dinner"))', "no tree", '{"slots": {"track": "y"}, "intent": "Play"}', "(A (x7 (B)))"]
    by_hand = {"match": 2 / 4, "precision": (1 + 0 + 1 + 1) / 4, "recall": (2 / 3 + 0 + 1 + 1) / 4}
    found, other_way = (parsing_figures(*each, frozenset({"Play"})) for each in ((gold, read), (read, gold)))
    assert found == pytest.approx(by_hand)
    assert other_way == pytest.approx(by_hand | {"precision": by_hand["recall"], "recall": by_hand["precision"]})
    assert parsing_figures([], []) == {"match": 0, "precision": 0, "recall": 0}
    other = ['{"intent": "Stop", "slots": {"track": "y"}}']
    assert parsing_figures(gold[2:3], other, frozenset({"Play", "Stop"}))["match"] == 0


def test_rates_of_leaks_are_by_judge_and_domain_and_leave_empty_texts_out():
    leaking = benchmark("domain_leaks")
    lists = leaking.ListJudge({"air": KeywordPolicy(["seat"]), "media": KeywordPolicy(["zip code", "plan"])})
    said = {"air": ("my seat", "the zip code, a seat", "  "), "media": ("a plan", "Seats, seat!", "ok")}
    texts = [leaking.Sampled(domain, text) for domain, each in said.items() for text in each]
    assert leaking.leaks(texts, lists) == [False, True, False, False, True, False]
    found = leaking.leak_rates(texts, {"lists": lists, "nobody": lambda _: set()})
    counts = {domain: (rate.leaks, rate.texts) for domain, rate in found["lists"].items()}
    assert counts == {leaking.ALL: (2, 5), "air": (1, 2), "media": (1, 3)}
    assert all(rate.leaks == 0 and rate.low == 0.0 < rate.high for rate in found["nobody"].values())
    with pytest.raises(ConfigError, match="all texts are empty"):
        leaking.leak_rates(texts[2:3], {"lists": lists})


def test_intervals_of_leaks_hold_the_true_rate_as_often_as_they_say():
    leaking, random, rate = benchmark("domain_leaks"), np.random.default_rng(0), 0.07
    found = [leaking.rate_of(int(random.binomial(300, rate)), 300) for _ in range(300)]
    assert sum(each.low <= rate <= each.high for each in found) >= stats.binom(300, 0.95).ppf(1e-4)
    gaps = [
        leaking.difference(*(leaking.rate_of(int(random.binomial(400, share)), 400) for share in (0.12, 0.05)))
        for _ in range(300)
    ]
    assert stats.binom(300, 0.95).ppf(1e-4) <= sum(low <= 0.07 <= high for low, high in gaps)
    assert sum(low <= 0.0 for low, _ in gaps) < 60, "it sees a difference of seven points"
    by_hand = leaking.difference(leaking.rate_of(56, 70), leaking.rate_of(48, 80))
    assert by_hand == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_a_classifier_judges_leaks_by_its_windows():
    taught = {"air": ("seat on the flight", "boarding the flight"), "media": ("internet plan", "new plan")}
    scores = train_scores([(text, domain) for domain, each in taught.items() for text in each], 3)
    judge = benchmark("domain_leaks").ClassifierJudge(ClassifierPolicy(scores, window=3, threshold=0.8))
    assert judge("flight boarding seat") == {"air"}
    assert judge("new internet plan then some words flight boarding seat") == {"air", "media"}
    assert judge("hello") == set()


def _gradients(model, first, losses):
    ids = torch.arange(first, first + 9, dtype=torch.int32).numpy()
    (batch,) = physical_batches([[Document(ids, 1)]], 16, pad=0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(losses(model, batch).sum(), trained))


@pytest.mark.exhaustive
def test_gradients_are_the_same_and_frozen_layers_run_once_for_each_batch(tiny_base):
    """Two layers, the second with LoRA that is no longer at its start, where its gradients are zero."""
    model = trainable(load_backbone(ModelConfig(base=str(tiny_base), dtype="float32")), AdapterConfig(layers=1, rank=2))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.constant_(parameter, 0.01)
    expected = {first: _gradients(model, first, row_losses) for first in (5, 50)}
    assert any(gradient.any() for gradient in expected[5])
    frozen = benchmark("frozen_layers").FrozenLayers(1)
    losses = frozen.watching(row_losses)
    with frozen.of(model):
        for first in (5, 50, 5):
            assert all(map(torch.equal, expected[first], _gradients(model, first, losses)))
    with torch.no_grad():
        model.get_base_model().base_model.layers[0].mlp.up_proj.weight.fill_(float("nan"))
    with frozen.of(model):
        assert all(map(torch.equal, expected[5], _gradients(model, 5, losses)))
        assert not torch.isfinite(_gradients(model, 99, losses)[0]).all()
    assert not torch.isfinite(_gradients(model, 5, row_losses)[0]).all(), "the layer still takes what is kept"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_thread")
def test_rows_of_taggers_are_kept(tmp_path, tiny_bert, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    texts = [sentence(user, number) for user in range(60) for number in range(2)]
    rows = [(text.split(), *labelled(text)) for text in texts]
    snips = {
        "split": ["train"] * len(rows),
        "tokens": [words for words, _, _ in rows],
        "intent": [SNIPS[intent] for _, intent, _ in rows],
        "bio": [[SNIPS.get(label, label) for label in labels.split()] for _, _, labels in rows],
    }
    pq.write_table(pa.table(snips), tmp_path / "snips_intents_slots.parquet")
    table, out = benchmark("edpsgd_table"), tmp_path / "table.json"
    arms = ["SGD", "z0 0.1", "N 16", "each", "constant, scaled"]
    places = ["--data", str(tmp_path), "--work", str(tmp_path / "rows"), "--base", str(tiny_bert), "--out", str(out)]
    few = "--corpora snips --steps 8 --rate 0.5 --norm 0.5 --tested 40 --layers 1 --json".split()  # noqa: SIM905
    words = [*places, *few, "--arms", *arms]
    table.main(words)
    found = json.loads(out.read_text())
    by_arm = {row["arm"]: row for row in found["rows"]}
    assert list(by_arm) == arms
    assert by_arm["SGD"]["guarantee"] == "none"
    paper = by_arm["z0 0.1"]
    assert paper["guarantee"] == "no meaningful guarantee"
    assert (paper["delta"], by_arm["each"]["delta"]) == (5e-4, 1e-6)
    assert all(stated < paper["log10_sound"] for stated in paper["log10_published"].values())
    for arm in ("N 16", "each", "constant, scaled"):
        assert 10 ** by_arm[arm]["log10_sound"] == pytest.approx(8, rel=0.02), arm
        assert not by_arm[arm]["guarantee"]
    assert by_arm["N 16"]["noise_multiplier"] == by_arm["each"]["noise_multiplier"]
    claims = found["claims"]["snips"]
    assert claims["no row of the paper's regime has a meaningful guarantee"]
    assert "epsilon 8: scales of layers help (constant)" not in claims, "its base is not among the arms"
    monkeypatch.setattr(table.Bench, "row", None)  # nothing is measured again
    table.main(words)
    assert json.loads(out.read_text()) == found


@pytest.mark.exhaustive
def test_remembered_states_are_those_of_the_encoder(tiny_bert, one_thread):
    encoder = BertModel.from_pretrained(tiny_bert).eval()
    remembered = benchmark("remembered").RememberedEncoder(encoder)
    ids = torch.tensor([[2, 9, 8, 7, 3], [2, 5, 3, 0, 0]])
    mask = (torch.tensor([5, 3])[:, None] > torch.arange(5))[:, None, None].expand(2, 1, 5, 5)
    with torch.no_grad():
        there = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    first, other = remembered(ids, mask).last_hidden_state, remembered(ids[1:, :4], mask[1:, :, :4, :4])
    assert torch.allclose(first[0], there[0], atol=1e-6)
    assert torch.allclose(first[1, :3], there[1, :3], atol=1e-6)
    assert torch.equal(other.last_hidden_state[0, :3], first[1, :3])
    assert not first[1, 3:].any()
    assert not remembered(ids[:1], mask[:1]).last_hidden_state.requires_grad


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.exhaustive
def test_a_row_of_the_frontier_is_measured_and_found_again(job, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    frontier = benchmark("frontier")
    monkeypatch.setattr(frontier, "_recipe", lambda *_: job.recipe)
    monkeypatch.setattr(sys, "argv", ["frontier.py", "--work", str(job.folder / "rows"), "--compare", "40"])
    arguments = frontier._arguments()
    arguments.override = ["generation.texts=40", "match={candidates: 2, topics: 3}"]
    arguments.work.mkdir()
    found = frontier.row(arguments, "chat", "seqpate", 3.0, "shipped", 0)
    assert {"recall", "topic_total_variation", "length_total_variation"} <= found["figures"].keys()
    assert set(found["heldout_perplexity"]) >= {"base", "released"}
    assert frontier.gap_closed(found, [found]) is not None
    assert len(found["samples"]) == 20
    assert set(found["epsilon_by_stage"]) == {"release gate", "topics and lengths", "all stages together"}
    monkeypatch.setattr(frontier, "watched_run", lambda *_: pytest.fail("ran twice"))
    assert frontier.row(arguments, "chat", "seqpate", 3.0, "shipped", 0) == found
