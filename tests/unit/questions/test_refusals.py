"""What the command refuses: in one sentence, with exit code 2, and before anything is written."""

import json
import os
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command
from public_pages import write_pages

from rayprivacy.api import Result
from rayprivacy.core.errors import ConfigError
from rayprivacy.questions import settings


@pytest.fixture
def pages(tmp_path):
    return write_pages(tmp_path / "pages.parquet", 2)


def said(tmp_path, *words, out="out"):
    folder = ["--out", str(tmp_path / out)] if out else []
    done = command(["questions", *folder, *map(str, words)], tmp_path)
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


def like_a_run(folder, *, finished):
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
    run = like_a_run(tmp_path / "runs" / "chat", finished=finished)
    os.symlink(run / "synthetic.parquet", tmp_path / "link.parquet")
    os.symlink(run, tmp_path / "linked")
    found = said(tmp_path, "--public", INSIDE[case](tmp_path / "runs"))
    assert "--public is" in found
    assert "lies in a run directory or holds one" in found
    assert "with `rayprivacy questions RUN_DIR`" in found
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


@pytest.mark.parametrize(
    ("written", "words", "expected"),
    [
        (None, [], r"recipe of questions is 'keys\.yaml', which cannot be read .*, e\.g\. jobs/question_answering/"),
        ("- 1\n", [], "is not a mapping of keys: start it with `questions:`"),
        ("# asked\nquestions:\n  sed: 2\n", [], r"did you mean 'questions\.seed'.*\(line 3 of keys\.yaml\)"),
        ("questions:\n  keep: {share: 2}\n", [], r"'questions\.keep\.share' is 2: .* \(line 2 of keys\.yaml\)"),
        ("method: generator\n", [], r"'method' is not a key of the command: .*\(line 1 of keys\.yaml\)"),
        ("questions: {seed: -1}\n", ["-o", "questions.seed=-2"], r"'questions\.seed' is -2: [^(]*$"),
        ("questions: {keep: {by: value}}\n", [], r"questions\.keep\.by is 'value' and there are no questions\.pairs"),
    ],
)
def test_a_wrong_file_of_keys_is_one_sentence_with_its_line(written, words, expected, pages, tmp_path):
    if written is not None:
        (tmp_path / "keys.yaml").write_text(written)
    assert re.search(expected, said(tmp_path, "--public", pages, "--recipe", "keys.yaml", *words))
    assert not (tmp_path / "out").exists()


def test_another_set_in_the_folder_is_not_written_over(pages, tmp_path):
    from rayprivacy.runs.questions_plan import STAGES

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / STAGES).write_text(json.dumps({"inputs": {"questions": {"entities": "rules"}}}))
    for more in ([], ["--resume"]):
        assert "holds questions about another text: name a new" in said(tmp_path, "--public", pages, *more)


RUNS = {  # the words of the command, and what it says
    "both": (["chat", "--public", "pages.parquet"], "both chat and --public are given: leave one of them out"),
    "neither": ([], "give the directory of a finished run, or --public"),
    "public text without a folder": (["--public", "pages.parquet"], "--out is missing"),
    "another folder": (["chat", "--out", "elsewhere"], "--out is for --public"),
    "a column": (["chat", "--text", "text"], "--text is for --public"),
    "a URI": (["s3://bucket/chat?secret=1"], "s3://bucket/chat is a URI: give the local folder"),
    "no run": (["."], ". is no run directory"),
    "a file of a run": (["chat/synthetic.parquet"], "synthetic.parquet is no run directory"),
    "a run that goes on": (["begun"], "begun holds a run that is not finished: finish it with"),
    "a run without text": (["tagger"], "tagger holds no text to ask about: its method, edp_sgd, releases none"),
    "a run that lost its text": (["lost"], "lost lacks its text, synthetic.parquet"),
    "a run of empty texts": (["empty"], "empty holds no text to ask about"),
    "text that leads to the private side": (["linked"], "linked lacks its text"),
    "a shadow of a run": (["chat/private/shadows/run"], "lies in the private folder of a run"),
}


def finished_run(make_run, folder, **kinds):
    """The directory of a finished run with a private side, below `folder`."""
    made = make_run(name=str(folder), **kinds)
    (made / "private").mkdir()
    write_pages(made / "synthetic.parquet", 1)
    return made


@pytest.mark.parametrize("case", RUNS)
def test_a_run_that_cannot_be_asked_about_is_one_sentence(case, pages, make_run, tmp_path):
    for name in ("chat", "begun", "lost", "empty", "linked", "chat/private/shadows/run"):
        finished_run(make_run, name)
    finished_run(make_run, "tagger", recipe="method: edp_sgd")
    (tmp_path / "begun" / "certificate.json").unlink()
    (tmp_path / "lost" / "synthetic.parquet").unlink()
    pq.write_table(pa.table({"text": ["", " "]}), tmp_path / "empty" / "synthetic.parquet")
    private = (tmp_path / "linked" / "synthetic.parquet").rename(tmp_path / "linked" / "private" / "part.parquet")
    (tmp_path / "linked" / "synthetic.parquet").symlink_to(private)
    words, expected = RUNS[case]
    found = said(tmp_path, *words, out=None)
    assert expected in found
    assert "secret" not in found
    assert not [*tmp_path.rglob("questions*"), *tmp_path.glob("elsewhere")]


def test_another_set_of_a_run_is_not_written_over(make_run, tmp_path):
    folder = finished_run(make_run, "chat") / "questions"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    assert "which holds other files: move that folder away" in said(tmp_path, "chat", out=None)
    (folder / "stages.json").write_text(json.dumps({"inputs": {"questions": {"entities": "rules"}}}))
    assert "holds questions about another text: move that folder" in said(tmp_path, "chat", "--resume", out=None)


def test_a_run_without_a_finished_set_has_no_questions(make_run, tmp_path):
    result = Result(finished_run(make_run, "chat"))
    for stages in (None, {"inputs": {}}):
        if stages is not None:
            (result.path / "questions").mkdir()
            (result.path / "questions" / "stages.json").write_text(json.dumps(stages))
        with pytest.raises(ConfigError, match="holds no finished questions: ask them with"):
            result.questions()
