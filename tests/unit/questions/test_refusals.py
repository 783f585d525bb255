"""What the command refuses: in one sentence, with exit code 2, and before anything is written."""

import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command
from public_pages import write_pages

from rayprivacy.questions import settings


@pytest.fixture
def pages(tmp_path):
    return write_pages(tmp_path / "pages.parquet", 2)


def said(tmp_path, *words, out="out"):
    done = command(["questions", "--out", str(tmp_path / out), *map(str, words)], tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr.strip()


WRONG = {
    "a file that is not there": (
        ["--public", "nowhere.parquet"],
        "--public is 'nowhere.parquet', which does not exist",
    ),
    "a column of no text": (["--public", "pages.parquet", "--text", "txt"], "--text is 'txt', which is not a column"),
    "a column of no document": (["--public", "pages.parquet", "--document", "page"], "--document is 'page', which is"),
    "one column for both": (["--public", "pages.parquet", "--document", "text"], "which is --text too"),
    "numbers in place of texts": (["--public", "numbers.parquet"], "--text names a column of type int64"),
    "texts that are empty": (["--public", "empty.parquet"], "--public has no text in the column 'text'"),
    "another key": (
        ["--public", "pages.parquet", "-o", "questions.entites=rules"],
        "did you mean 'questions.entities'?",
    ),
    "a key of a recipe": (["--public", "pages.parquet", "-o", "privacy.epsilon=1"], "is not a key of the command"),
    "a format": (["--public", "pages.parquet", "-o", "questions.write=[xml]"], "'questions.write.0' is 'xml'"),
    "a stride": (["--public", "pages.parquet", "-o", "questions.passages.stride=200"], "stride is above words"),
    "a range": (["--public", "pages.parquet", "-o", "questions.evidence.words=[9, 5]"], "words is no range"),
    "no form of an override": (["--public", "pages.parquet", "-o", "entities"], "is not of the form key=value"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence(case, pages, tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"text": ["", " ", None]}), tmp_path / "empty.parquet")
    words, expected = WRONG[case]
    assert expected in said(tmp_path, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "missing",
    [("bm25s", "", "questions need bm25s"), ("spacy", "questions.entities=spacy", "and spacy is not installed")],
)
def test_a_missing_package_is_named_with_how_to_get_it(missing, pages, tmp_path, monkeypatch):
    package, override, expected = missing
    monkeypatch.setattr(settings, "find_spec", lambda name: None if name == package else sys)
    words = ["-o", override] if override else []
    assert expected in (found := said(tmp_path, "--public", pages, *words))
    assert "pip install 'rayprivacy[questions]'" in found
    assert not (tmp_path / "out").exists()


def test_rules_serve_where_the_model_is_missing(monkeypatch):
    monkeypatch.setattr(settings, "find_spec", lambda name: None if name == "spacy" else sys)
    assert settings.QuestionsConfig().decided().entities == "rules"
    monkeypatch.undo()
    pytest.importorskip("spacy")
    assert settings.QuestionsConfig().decided().entities == "spacy"


def make_run(folder, *, finished):
    """What tells a run directory: a certificate, or a recipe beside a private side."""
    (folder / "private" / "source").mkdir(parents=True)
    (folder / ("certificate.json" if finished else "recipe.yaml")).write_text("{}")
    for path in (folder / "synthetic.parquet", folder / "private" / "source" / "part.parquet"):
        write_pages(path, 1)
    return folder


INSIDE = {
    "a file of a run": lambda runs: runs / "chat" / "synthetic.parquet",
    "a file of its private side": lambda runs: runs / "chat" / "private" / "source" / "part.parquet",
    "a run": lambda runs: runs / "chat",
    "a folder of runs": lambda runs: runs,
    "a URI": lambda runs: f"file://{runs}/chat/synthetic.parquet",
    "a link to a file": lambda runs: runs.parent / "link.parquet",
    "a link to a folder": lambda runs: runs.parent / "linked" / "synthetic.parquet",
    "a path with dots": lambda runs: runs / "chat" / "private" / ".." / "synthetic.parquet",
}


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("case", INSIDE)
def test_text_of_a_run_is_not_public(case, finished, tmp_path):
    run = make_run(tmp_path / "runs" / "chat", finished=finished)
    os.symlink(run / "synthetic.parquet", tmp_path / "link.parquet")
    os.symlink(run, tmp_path / "linked")
    found = said(tmp_path, "--public", INSIDE[case](tmp_path / "runs"))
    assert "--public is" in found
    assert "lies in a run directory or holds one" in found
    assert not (tmp_path / "out").exists()


def test_a_recipe_beside_public_text_makes_no_run(pages, tmp_path):
    (tmp_path / "recipe.yaml").write_text("method: generator")
    assert "did you mean" in said(tmp_path, "--public", pages, "-o", "questions.sed=1")
    from rayprivacy.runs.checks import require_no_run
    from rayprivacy.runs.questions import public_source

    require_no_run(public_source(str(pages), "text", None))


def test_a_folder_of_something_else_is_left_as_it_is(pages, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    assert "which holds other files: name a new folder" in said(tmp_path, "--public", pages)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["README.md"]


def test_another_set_in_the_folder_is_not_written_over(pages, tmp_path):
    from rayprivacy.runs.questions import STAGES

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / STAGES).write_text(json.dumps({"inputs": {"questions": {"entities": "rules"}}}))
    assert "holds questions already: add --resume" in said(tmp_path, "--public", pages)
    assert "about another text, or by other settings" in said(tmp_path, "--public", pages, "--resume")
