"""What the stages of a question set take from each other, without the minutes in which they learn and ask."""

from contextlib import nullcontext

import pyarrow as pa
import pytest
from public_pages import paragraphs, write_asked

from rayprivacy.questions.settings import QuestionsConfig, parse_questions
from rayprivacy.questions.texts import write_texts
from rayprivacy.runs import questions_stages
from rayprivacy.runs.files import overridden
from rayprivacy.runs.questions_folder import Folder, Material
from rayprivacy.runs.questions_stages import Making

pytest.importorskip("bm25s")


def making(folder, settings, texts=()):
    made = Making(
        Material(pa.table({"text": pa.array(texts, pa.large_string())}), {}, "public"),
        settings,
        Folder(folder, 1, lambda stage: nullcontext(), lambda *counted: None),
    )
    made.folder.work("").mkdir(parents=True)
    write_texts(made.material.texts, made.texts.path)
    return made


def test_a_retriever_learns_no_cloze_of_a_document_that_the_test_asks_about(tmp_path, monkeypatch):
    """Nor one about another of its passages, which overlaps."""
    settings = QuestionsConfig.parse({"passages": {"words": 32, "stride": 16}})
    made = making(tmp_path, settings, [" ".join(paragraphs(number, 0)) for number in range(4)])
    passages = [(each.number, passage.id) for each in made.documents() for passage in each.passages]
    clozes = pa.table({"document": [number for number, _ in passages], "passage": [name for _, name in passages]})
    monkeypatch.setattr(Folder, "blocks", lambda *_: clozes)
    first = dict(reversed(passages))
    splits = ["train", "test", "train", "test"]
    asked = pa.table({"passage": [first[number] for number in range(4)], "split": splits})
    left = made._clozes_beside(asked)
    assert {*left["document"].to_pylist()} == {0, 2}
    assert len(left) == sum(number in (0, 2) for number, _ in passages) > 4


class Judge:
    def save(self, folder):
        folder.mkdir()


def test_a_judge_is_trained_anew_where_its_encoder_is_another(tmp_path, monkeypatch):
    (tmp_path / "bert").mkdir()
    weights = tmp_path / "bert" / "model.safetensors"
    (tmp_path / "bert" / "config.json").write_text("{}")
    weights.write_bytes(b"one")
    trained = []
    monkeypatch.setattr(questions_stages, "trained_judge", lambda *given: trained.append(given) or Judge())
    keys = write_asked(tmp_path) | {"questions.judge.encoder": str(tmp_path / "bert")}
    made = making(tmp_path / "out", parse_questions(overridden({}, keys)))
    first = made._judge()
    assert made._judge() == first
    assert len(trained) == 1
    weights.write_bytes(b"two")
    assert made._judge() != first
    assert len(trained) == 2
