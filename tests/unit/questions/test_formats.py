"""A question set as other tools read it: datasets, BEIR, ragas, sentence-transformers."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from public_pages import write_pages
from question_readers import read_beir, read_pairs, read_ragas

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.corpus.public import public_table
from rayprivacy.questions.answers import holds
from rayprivacy.questions.asking import Asker, Asking
from rayprivacy.questions.keep import distinct
from rayprivacy.questions.passages import plain
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.questions.table import ORIGIN, check_offsets, finished, write_formats
from rayprivacy.questions.texts import Texts, write_texts
from rayprivacy.runs.questions import public_source, released_material

pytest.importorskip("bm25s")
SETTINGS = QuestionsConfig(entities="rules")
SQUAD = ["id", "title", "context", "question", "answers"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a question set, its table, and the passages."""
    folder = tmp_path_factory.mktemp("set")
    corpus = public_source(str(write_pages(folder / "pages.parquet", 60)), "text", "article")
    write_texts(public_table(corpus, {}), folder / "texts.parquet", together=True)
    texts = Texts(folder / "texts.parquet", SETTINGS.passages)
    ask = Asker(Asking(texts, SETTINGS, elsewhere=True))
    asked = pa.concat_tables([ask(group, group) for group in range(texts.groups)])
    asked = pa.concat_tables([asked, asked.slice(0, 3)])
    kept = distinct(asked["question"].to_pylist())
    questions = finished(asked, {"kept": kept}, 0, "of public pages")
    passages = [
        passage for group in range(texts.groups) for each in texts.documents(group) for passage in each.passages
    ]
    pq.write_table(questions, folder / "questions.parquet")
    write_formats(folder, questions, passages, SETTINGS.write)
    return folder, questions.to_pylist(), passages


def test_row_groups_hold_whole_documents_and_every_text(made):
    texts = Texts(made[0] / "texts.parquet", SETTINGS.passages)
    held = [[*texts.documents(group)] for group in range(texts.groups)]
    assert texts.groups > 1
    numbers = [each.number for group in held for each in group]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 60
    assert sorted(row for group in held for each in group for row in each.rows) == [*range(180)]


def test_datasets_reads_the_table_as_squad(made, tmp_path):
    datasets = pytest.importorskip("datasets")
    read = datasets.load_dataset("parquet", data_files=str(made[0] / "questions.parquet"), cache_dir=str(tmp_path))
    rows = read["train"]
    assert rows.column_names[:5] == SQUAD
    assert len(rows) == len(made[1])
    for row in rows:
        (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"][start:].startswith(text)
        assert row["context"][row["evidence_start"] :].startswith(row["evidence"])
        assert text in row["evidence"]
    assert pq.read_schema(made[0] / "questions.parquet").metadata[ORIGIN] == b"of public pages"


def test_datasets_reads_squads_json(made, tmp_path):
    datasets = pytest.importorskip("datasets")
    path = str(made[0] / "squad.json")
    articles = datasets.load_dataset("json", data_files=path, field="data", cache_dir=str(tmp_path))["train"]
    kept = {row["id"]: row for row in made[1] if row["kept"]}
    seen = set()
    for article in articles:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                row = kept[asked["id"]]
                seen.add(asked["id"])
                assert (article["title"], paragraph["context"]) == (row["title"], row["context"])
                assert asked["question"] == row["question"]
                for answer in asked["answers"]:
                    assert paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
    assert seen == kept.keys()
    whole = json.loads((made[0] / "squad.json").read_text("utf-8"))
    assert whole["version"] == "1.1"
    assert whole["origin"] == "of public pages"


def test_beir_finds_every_passage_and_the_right_ones(made):
    folder, rows, passages = made
    seen = 0
    for split in ("train", "test"):
        corpus, queries, qrels = read_beir(folder / "beir", split)
        assert len(corpus) == len(passages) == len({passage.id for passage in passages})
        kept = {row["id"]: row for row in rows if row["kept"] and row["split"] == split}
        assert qrels.keys() == queries.keys() == kept.keys()
        seen += len(kept)
        for query, right in qrels.items():
            ((passage, score),) = right.items()
            assert score == 1
            assert corpus[passage] == {"text": kept[query]["context"], "title": kept[query]["title"]}
            assert queries[query] == kept[query]["question"]
    assert seen == sum(row["kept"] for row in rows)
    for split in ("train", "test"):
        assert (folder / "beir" / "qrels" / f"{split}.tsv").read_text().startswith("query-id\tcorpus-id\tscore\nq")


def test_ragas_has_the_passage_with_the_answer(made):
    samples = read_ragas(made[0] / "ragas.jsonl")
    assert len(samples) == sum(row["kept"] for row in made[1])
    assert all(holds(sample["reference_contexts"][0], sample["reference"]) for sample in samples)


def test_the_negative_of_a_triplet_is_another_passage_without_the_answer(made):
    answers = {row["question"]: row for row in made[1] if row["kept"]}
    triplets = read_pairs(made[0] / "pairs.jsonl")
    assert len(triplets) > 50
    for anchor, positive, negative in triplets:
        row = answers[anchor]
        assert row["split"] == "train"
        assert positive == row["context"]
        assert not holds(negative, row["answers"]["text"][0])


def test_no_document_and_so_no_passage_is_in_both_splits(made):
    splits = {}
    for row in made[1]:
        splits.setdefault(row["title"], set()).add(row["split"])
    assert all(len(each) == 1 for each in splits.values())
    assert sum(each == {"test"} for each in splits.values()) == 6  # one in ten


def test_of_questions_that_are_written_alike_the_first_is_kept(made):
    kept = [plain(row["question"]) for row in made[1] if row["kept"]]
    assert len(kept) == len(set(kept)) == len({plain(row["question"]) for row in made[1]})
    assert [row["kept"] for row in made[1][-3:]] == [False] * 3


def test_answers_and_evidence_are_where_they_are_said_to_be(made):
    table = pq.read_table(made[0] / "questions.parquet")
    check_offsets(table)
    for name in ("answers", "evidence_start"):
        rows = table.to_pylist()
        if name == "answers":
            rows[0]["answers"]["answer_start"][0] += 1
        else:
            rows[0]["evidence_start"] += 1
        with pytest.raises(RayPrivacyError, match=r"^an answer is not where"):
            check_offsets(pa.Table.from_pylist(rows, table.schema))


def test_formats_that_are_not_asked_for_are_not_written(made, tmp_path):
    write_formats(tmp_path, pq.read_table(made[0] / "questions.parquet"), made[2], ["ragas"])
    assert [path.name for path in tmp_path.iterdir()] == ["ragas.jsonl"]


def test_texts_without_a_document_are_their_own_and_empty_ones_none(tmp_path):
    table = pa.table({"text": ["a b", None, "c d", "e f"], "page": ["x", "x", None, "x"]})
    write_texts(table, tmp_path / "texts.parquet", together=True)
    (first, second) = Texts(tmp_path / "texts.parquet", SETTINGS.passages).documents(0)
    assert (first.title, first.texts, first.rows) == ("x", ["a b", "e f"], [0, 2])
    assert (second.title, second.texts, second.passages[0].id) == ("", ["c d"], "p1-0")


def test_texts_of_one_title_are_a_document_only_where_they_lie_together(tmp_path):
    table = pa.table({"text": ["a b", None, "c d", "e f"], "topic": ["x", "x", None, "x"]})
    write_texts(table, tmp_path / "texts.parquet")
    found = Texts(tmp_path / "texts.parquet", SETTINGS.passages).documents(0)
    assert [(each.title, each.texts) for each in found] == [("x", ["a b"]), ("", ["c d"]), ("x", ["e f"])]


def test_released_text_has_its_labels_for_a_title(tmp_path):
    table = {
        "text": [" a b ", "c d", None],
        "topic": ["x", "x", "y"],
        "mood": ["glad", None, None],
        "prompt": ["p"] * 3,
    }
    pq.write_table(pa.table(table), tmp_path / "synthetic.parquet")
    made = released_material(tmp_path, "synthetic.parquet", ["topic", "mood", "unreleased"], "mine-1", "So it is.")
    assert made.texts.to_pydict() == {"text": ["a b", "c d", None], "title": ["x, glad", "x", "y"]}
    assert (made.origin, made.together) == ("made of the text of release mine-1. So it is.", False)
    assert "title" not in released_material(tmp_path, "synthetic.parquet", [], "mine-1", "").texts.column_names
