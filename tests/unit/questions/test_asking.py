"""Phrases of public questions, what is asked about, and what an asker learns."""

import json
import math
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.generation.writing import METADATA, Written
from rayprivacy.models import asked as learning
from rayprivacy.models.asked import asked
from rayprivacy.questions.asker import QUESTIONS as ASKED
from rayprivacy.questions.asker import REPEATS, behind, known_phrases, left_out, lessons_of
from rayprivacy.questions.clozes import Document
from rayprivacy.questions.evidence import EVIDENCE, evidence_table
from rayprivacy.questions.passages import sentences
from rayprivacy.questions.phrases import Phrases, divergence, question_type, read, recall, written
from rayprivacy.questions.public import public_pairs
from rayprivacy.questions.settings import AskerConfig, EvidenceConfig, PairsConfig, PassagesConfig, PhrasesConfig

QUESTIONS = ["what is it ?"] * 6 + ["what was it ?"] * 3 + ["Has lasix helped ?", "Has insulin helped ?", "what if"]
CONFIG = PhrasesConfig(least_share=0.1)  # of 12 questions: a phrase of one degrades
PAIRS = [("a", "what was it ?"), ("b", "Has lasix helped ?"), ("a", "what  is it ?"), ("a", "what is that ?")]


@pytest.fixture
def known():
    return Phrases.of(QUESTIONS, CONFIG)


def test_rare_phrases_degrade_to_their_first_word(known):
    assert known.counts == Counter({"what is": 6, "what was": 3, "Has": 2, "what": 1})
    said = ["what was there", "Has warfarin helped ?", "what pear", "Has", "what", "why is it", "what   is"]
    assert [known(each) for each in said] == ["what was", "Has", "what", "Has", "what", None, "what is"]
    # A share of exactly the least is not above it, and words may be more or fewer.
    assert Phrases.of(["a b", "a c"], PhrasesConfig(least_share=0.5)).counts == {"a": 2}
    assert Phrases.of(["a b", "a c"], PhrasesConfig(words=1)).counts == {"a": 2}
    assert Phrases.of(["a b", "a c"], PhrasesConfig(least_share=0)).counts == {"a b": 1, "a c": 1}


def test_sets_have_the_most_frequent_phrases_first(known):
    assert known.sets(PAIRS) == {"a": ["what is", "what was"], "b": ["Has"]}
    assert known.frequent(2) == ["what is", "what was"]
    assert read(written(["what is", "Has"]), known) == ["what is", "Has"]
    assert read("what was\nwhy is\n\nHas lasix\nHas it\nwhat was", known) == ["what was", "Has"]


def test_types_and_how_far_they_are_from_public_ones():
    assert [question_type(each) for each in ["What is ?", "the what ?", "Why?", ""]] == [
        "what",
        "other",
        "why",
        "other",
    ]
    public = ["what is it"] * 60 + ["who is it"] * 30 + ["in what"] * 10
    assert abs(divergence(public, public)) < 11, "half a question for each of the other types"
    alone = divergence(["what is it"], public)
    assert alone == pytest.approx(100 * math.log((100 + 21 / 2) / 60.5))
    assert divergence(["who came", "what came"], public) < alone < divergence(["why did it"], public) < 600
    assert recall([["a", "b"], []], [["a", "c"], ["b", "b"]]) == 1 / 3


def test_evidence_is_where_its_passage_says():
    text = " ".join(f"Sentence {number} has just {'very ' * (number % 4)}few words." for number in range(30))
    documents = [Document(7, "title", [text, "Too short."], [3, 4], PassagesConfig(words=16, stride=8))]
    table = evidence_table(documents, EvidenceConfig(words=(6, 8), most=12), seed=1)
    assert table.schema == EVIDENCE
    rows = table.to_pylist()
    assert len(rows) == 12
    passages = {passage.id: passage.text for passage in documents[0].passages}
    whole = {text[start:end] for start, end in sentences(text)}
    for row in rows:
        assert passages[row["passage"]] == row["context"]
        assert row["context"].startswith(row["evidence"], row["evidence_start"])
        assert row["evidence"] in whole
    assert evidence_table(documents, EvidenceConfig(words=(6, 8), most=12), seed=1) == table
    assert evidence_table(documents, EvidenceConfig(words=(6, 8), most=12), seed=2) != table


def test_a_phrase_ends_the_prompt_in_training_too(known, tiny_backbone):
    lessons = lessons_of(PAIRS, known, tiny_backbone, 64)
    assert lessons[: len(PAIRS)] == [
        ("ask a\nwhat was", " it ?"),
        ("ask b\nHas", " lasix helped ?"),
        ("ask a\nwhat is", " it ?"),
        ("ask a\nwhat is", " that ?"),
    ]
    assert lessons[len(PAIRS) :] == [("phrases a\n", "what is\nwhat was"), ("phrases b\n", "Has")]
    assert lessons[0][0] == asked("ask", "a", tiny_backbone, 64, "what was"), "as when it asks"
    # Without phrases it learns whole questions alone, and a long evidence is cut before its phrase.
    assert known_phrases(PAIRS, PhrasesConfig(how="none")) is None
    assert lessons_of(PAIRS[:1], None, tiny_backbone, 64) == [("ask a\n", "what was it ?")]
    prompt, _ = lessons_of([("long " * 99, "what is it ?")], known, tiny_backbone, 4)[0]
    assert prompt.endswith("\nwhat is")
    assert len(prompt) < 40


class Repeating:
    """A writer that repeats, or asks behind a phrase of two words what stands in the sentence."""

    def __init__(self, documents, texts):
        self.documents, self.texts = documents, texts

    def __call__(self, name, prompts, sampling):
        return [*zip([cell for cell, _ in prompts], self.texts, strict=True)]


def test_a_question_that_repeats_its_sentence_is_none_and_is_counted(tiny_backbone, tmp_path):
    sentence = "The goal of the path is the end of sorrow."
    document = Document(7, "title", [sentence], [1], PassagesConfig())
    table = evidence_table([document], EvidenceConfig(), seed=0)
    begun, path = ["", "the goal", "what is", "who says", "what", "goal of"], "the goal of the path ?"
    rests = [path, "of a path", path, sentence.lower(), "path is it ?", "sorrow"]
    sampling = SamplingConfig(max_tokens=24)
    asked = behind(Repeating(tiny_backbone, rests), table, [begun], AskerConfig(), sampling)
    assert asked.schema == ASKED
    kept = [("what is", f"what is {path}"), ("what", "what path is it ?"), ("goal of", "goal of sorrow")]
    assert [(row["phrase"], row["question"]) for row in asked.to_pylist()] == kept
    assert asked.select(EVIDENCE.names).to_pylist() == table.to_pylist() * 3
    assert not len(behind(Repeating(tiny_backbone, [sentence]), table, [[""]], AskerConfig(), sampling))
    counts = json.dumps(vars(Written(6, {"empty": 2}))).encode()
    pq.write_table(
        pa.table({"text": rests}).replace_schema_metadata({METADATA: counts}), tmp_path / "questions.parquet"
    )
    assert left_out(tmp_path, len(asked)) == {"empty": 2, REPEATS: 3}


def test_public_pairs_are_rows_with_both_and_too_few_are_refused(tmp_path):
    rows = [{"sentence": f"s {number}", "asked": f"what is {number} ?"} for number in range(12)]
    random.Random(0).shuffle(rows)
    pq.write_table(pa.Table.from_pylist([*rows, {"sentence": "s", "asked": None}]), tmp_path / "pairs.parquet")
    config = PairsConfig(source=str(tmp_path / "pairs.parquet"), evidence="sentence", question="asked")
    assert public_pairs(config) == [(row["sentence"], row["asked"]) for row in rows]
    with pytest.raises(ConfigError, match=r"questions\.pairs\.question .*'what'"):
        public_pairs(config.model_copy(update={"question": "what"}))
    pq.write_table(pa.Table.from_pylist(rows[:9]), tmp_path / "pairs.parquet")
    with pytest.raises(ConfigError, match=r"^questions\.pairs\.source has 9 rows .*: give at least 10\.$"):
        public_pairs(config)


def test_the_loss_is_that_of_answers_and_the_head_reads_nothing_else(known, tiny_backbone):
    lessons, model = lessons_of(PAIRS, known, tiny_backbone, 64), tiny_backbone.model
    examples = [learning._example(tiny_backbone, pair, 32) for pair in lessons]
    head, seen = model.get_output_embeddings(), []
    hooks = [head.register_forward_hook(lambda _head, inputs, _out: seen.append(inputs[0].shape[:-1]))]
    found = learning._loss(tiny_backbone.end)(model, examples)
    hooks.pop().remove()
    assert seen == [(1, learning._predicted(examples))]
    whole = 0.0
    for each in examples:
        ids = torch.tensor([each.ids])
        logits = model(input_ids=ids).logits[0, each.first - 1 : -1]
        whole += float(torch.nn.functional.cross_entropy(logits.float(), ids[0, each.first :], reduction="sum"))
    assert float(found) == pytest.approx(whole, rel=1e-3)
