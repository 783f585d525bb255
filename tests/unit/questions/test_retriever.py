"""A retriever tells a question from passages that resemble its own, stops early, and is saved as it is."""

import json
import random
import re

import numpy as np
import pyarrow as pa
import pytest
import torch
from public_pages import paragraphs
from small_tagger import save_tiny_bert

import rayprivacy as rp
from rayprivacy.core.errors import ConfigError

pytest.importorskip("bm25s")
from rayprivacy.questions.clozes import Passage
from rayprivacy.questions.encoders import StaticEncoder, TextEncoder, fresh_encoder, load_encoder
from rayprivacy.questions.retriever import (
    SHARPNESS,
    TOGETHER,
    Pair,
    Retriever,
    apart,
    batches,
    fitted,
    told_apart,
    train_retriever,
    trained_retriever,
)
from rayprivacy.questions.settings import RetrieverConfig
from rayprivacy.reporting.questions_card import without_retriever

CONFIG = RetrieverConfig(batch=16, epochs=2, max_tokens=48)
PAGES = 24


def pages():
    """Questions about pages of three paragraphs, each about the first one, with the page as its title."""
    found = []
    for number in range(PAGES):
        for place, text in enumerate(paragraphs(number, 0)[:3]):
            first = re.split(r"(?<!Mr)(?<=\.)\s", text)[0]
            asked = " ".join(["what", *first.split()[2:8]])
            found.append((asked, text, first, f"page {number}", f"p{number}-{place}"))
    return found


PAIRS = [Pair(*row[:4]) for row in pages()]
TEXTS = [pair.passage for pair in PAIRS]


def table(rows, tested=(), changed=False):
    questions = [f"something else about {row[0]}" if changed and row[3] in tested else row[0] for row in rows]
    return pa.table(
        {
            "question": questions,
            "context": [row[1] for row in rows],
            "evidence": [row[2] for row in rows],
            "title": [row[3] for row in rows],
            "passage": [row[4] for row in rows],
            "split": ["test" if row[3] in tested else "train" for row in rows],
            "kept": [True] * len(rows),
        }
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_tiny_bert(tmp_path_factory.mktemp("retriever") / "bert", [*TEXTS, *(pair[0] for pair in PAIRS)]))


@pytest.fixture(scope="module", params=["static", "encoder"])
def fresh(request, base):
    return StaticEncoder.of(base, TEXTS, width=16) if request.param == "static" else TextEncoder.load(base, 48)


def test_every_pair_is_in_one_batch_and_beside_pairs_of_its_group():
    pairs = [Pair(f"q{group} {at}", f"p{group} {at}", "e", str(group)) for group in range(12) for at in range(40)]
    drawn = [*batches(pairs, 64, np.random.default_rng(0))]
    assert sorted(pair for batch in drawn for pair in batch) == sorted(pairs)
    beside = [sum(other.group == pair.group for other in batch) - 1 for batch in drawn for pair in batch]
    assert np.mean(beside) >= TOGETHER / 2
    again = [*batches(pairs, 64, np.random.default_rng(0))]
    assert again == drawn


def test_groups_of_one_pair_share_batches():
    pairs = [Pair(f"q{at}", f"p{at}", "e", str(at)) for at in range(50)]
    assert [len(batch) for batch in batches(pairs, 20, np.random.default_rng(1))] == [20, 20, 10]


def test_a_passage_that_holds_the_evidence_is_no_wrong_one(fresh):
    one, other = PAIRS[0], PAIRS[5]
    overlapping = one._replace(passage=f"{one.evidence} And more.", question="and more?", evidence="And more.")
    found = float(told_apart(fresh, [one, one, overlapping, other]))
    with torch.no_grad():
        asked = fresh([one.question, one.question, overlapping.question, other.question])
        scores = SHARPNESS * asked @ fresh([one.passage, overlapping.passage, other.passage]).T
        scores[0, 1] = scores[1, 1] = -torch.inf
        expected = torch.nn.functional.cross_entropy(scores, torch.tensor([0, 0, 1, 2]))
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_held_out_groups_are_apart():
    learnt, held = apart(PAIRS, 0)
    assert sorted([*learnt, *held]) == sorted(PAIRS)
    assert {pair.group for pair in held}.isdisjoint(pair.group for pair in learnt)
    assert len({pair.group for pair in held}) == round(PAGES / 10)
    assert apart(PAIRS, 1)[1] != held
    few = [pair._replace(group="of all") for pair in PAIRS]
    assert len({pair.passage for pair in apart(few, 0)[1]}) == round(len(few) / 10)


def test_it_learns_to_find_passages(fresh):
    learnt, held = apart(PAIRS, 0)
    found, losses = fitted(fresh, learnt, held, CONFIG.model_copy(update={"epochs": 4}), 0)
    assert min(losses) < losses[0]
    assert not any(each.requires_grad for each in found.parameters())


def test_what_does_not_serve_the_held_out_is_not_kept(base):
    """Questions and passages that have nothing to do with each other: what is learnt of them is noise."""
    draw = random.Random(0)
    words = sorted({word for text in TEXTS for word in text.split()})
    noise = [
        Pair(" ".join(draw.choices(words, k=6)), " ".join(draw.choices(words, k=20)), "none", str(at // 8))
        for at in range(320)
    ]
    fresh, (learnt, held) = StaticEncoder.of(base, TEXTS, width=16), apart(noise, 0)
    config = RetrieverConfig(batch=32, epochs=8, learning_rate=0.1)
    retriever, (losses,) = trained_retriever(fresh, [noise], config, 0)
    again, same = fitted(fresh, learnt, held, config, 0)
    assert same == losses
    best = losses.index(min(losses))
    assert best < len(losses) - 1
    with torch.no_grad():
        (kept,) = [
            sum(float(told_apart(again, batch)) * len(batch) for batch in batches(held, 32, np.random.default_rng(0)))
        ]
    assert kept / len(held) == pytest.approx(losses[best], abs=1e-3)
    assert np.array_equal(retriever.vectors(TEXTS[:3]), again.vectors(TEXTS[:3]))


def test_a_saved_retriever_says_the_same(fresh, tmp_path):
    retriever, _ = trained_retriever(fresh, [PAIRS], CONFIG, 0)
    retriever.save(tmp_path / "model" / "retriever")
    again = rp.Retriever.load(tmp_path / "model" / "retriever")
    assert again.share == retriever.share
    assert np.array_equal(again.vectors(TEXTS), retriever.vectors(TEXTS))
    assert again.vectors(TEXTS)[0] @ again.vectors(TEXTS)[0] == pytest.approx(1, abs=1e-5)
    assert again.search("what is the mill?", TEXTS, 5) == retriever.search("what is the mill?", TEXTS, 5)


def test_the_folder_is_one_of_sentence_transformers(fresh, tmp_path):
    Retriever(fresh).save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    kinds = [each["type"].rpartition(".")[2] for each in modules]
    assert kinds in (["StaticEmbedding", "Normalize"], ["Transformer", "Pooling", "Normalize"])
    assert [each["idx"] for each in modules] == [*range(len(modules))]
    for each in modules[:-1]:
        assert (tmp_path / each["path"]).is_dir()
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS[:8])
    assert np.allclose(theirs, load_encoder(tmp_path).vectors(TEXTS[:8]), atol=1e-5)


def test_a_control_token_that_a_text_spells_is_text(fresh):
    one, other = fresh.vectors(["the mill [SEP] of", "the mill of"])
    assert not np.allclose(one, other)


def test_a_text_without_words_is_far_from_all(fresh):
    assert np.isfinite(fresh.vectors(["", "the mill"])).all()
    assert fresh.vectors([]).shape[0] == 0
    assert len(Retriever(fresh, 0.5).search("", TEXTS, 3)) == 3


def test_search_mixes_words_and_vectors(fresh):
    asked, texts = PAIRS[3].question, TEXTS[:12]
    by_words, by_vectors = (Retriever(fresh, share).search(asked, texts, 12) for share in (0.0, 1.0))
    assert by_words[0][1] == pytest.approx(1.0)
    assert len(dict(by_words)) == 12
    half = dict(Retriever(fresh, 0.5).search(asked, texts, 12))
    for place, score in half.items():
        assert score == pytest.approx((dict(by_words)[place] + dict(by_vectors)[place]) / 2, abs=1e-5)
    assert [*half.values()] == sorted(half.values(), reverse=True)


TESTED = {f"page {number}" for number in range(3)}
PASSAGES = [Passage(row[4], row[3], row[1], 0, (0, len(row[1]))) for row in pages()]


def trained(folder, base, **options):
    questions = table(pages(), TESTED, options.pop("changed", False))
    clozes = options.pop("clozes", None)
    config = CONFIG.model_copy(update={"base": base, "epochs": 1} | options)
    return train_retriever(questions, PASSAGES, clozes, config, 0, folder)


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_equal_questions_give_equal_bytes_whatever_is_asked_in_the_test(base, tmp_path):
    said = [trained(tmp_path / str(turn), base, changed=turn == 2) for turn in range(3)]
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "2")
    assert said[0] == said[1]
    assert said[0]["test"] != said[2]["test"]
    figures = said[0]["test"]
    assert figures.keys() == {"bm25", "vectors", "hybrid"}
    assert figures["bm25"]["ndcg_10"]["low"] <= figures["bm25"]["ndcg_10"]["value"] <= 1
    assert said[0]["learnt"] == [3 * (PAGES - 3)]


def test_clozes_about_passages_of_the_test_are_left_out(base, tmp_path):
    every, own = table(pages()), table([row for row in pages() if row[3] not in TESTED])
    first, second, none = (
        trained(tmp_path / name, base, clozes=clozes) for name, clozes in (("a", every), ("b", own), ("c", None))
    )
    assert first == second
    assert len(first["held_out_losses"]) == 2
    assert len(none["held_out_losses"]) == 1
    assert files(tmp_path / "a") == files(tmp_path / "b") != files(tmp_path / "c")


def no_table(folder):
    (folder / "retriever.json").write_text('{"share": 0.5}')
    return rp.Retriever.load(folder)


@pytest.mark.parametrize(
    ("how", "said"),
    {
        "a folder without a retriever": (lambda path, base: rp.Retriever.load(path), "holds no retriever that can be"),
        "a folder without its table": (lambda path, base: no_table(path), "could not be loaded"),
        "no such base": (
            lambda path, base: fresh_encoder(RetrieverConfig(base=str(path / "nowhere")), TEXTS),
            "questions.retriever.base is",
        ),
        "a base with fewer positions": (
            lambda path, base: fresh_encoder(RetrieverConfig(base=base, max_tokens=96), TEXTS),
            "positions for 64 tokens",
        ),
        "a rate at which it diverges": (
            lambda path, base: fitted(
                TextEncoder.load(base, 48), PAIRS, PAIRS, RetrieverConfig(batch=8, learning_rate=1e30), 0
            ),
            "questions.retriever.learning_rate is 1e+30",
        ),
    }.values(),
)
def test_bad_input_is_refused_in_a_sentence(how, said, base, tmp_path):
    with pytest.raises(ConfigError, match=r"^[^\n]+\.$") as refused:
        how(tmp_path, base)
    assert said in str(refused.value)


def test_a_set_about_few_passages_has_no_retriever_and_says_so(tmp_path):
    few = table(pages()[:3])
    said = train_retriever(few, PASSAGES, None, CONFIG, 0, tmp_path / "r")
    assert re.fullmatch(r"the questions to learn from are about \d passages, and it takes 10", said["left_out"])
    assert without_retriever({"retriever": said}) == f"There is no retriever: {said['left_out']}."
    assert not (tmp_path / "r").exists()
