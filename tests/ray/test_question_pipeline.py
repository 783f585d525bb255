"""Asking by a model from end to end on a real Ray: texts, asker, answers, judge, values, what is kept."""

import json
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from commands import command
from public_pages import asked_pages, write_asked, write_pages
from small_jobs import on_this_ray
from zygote import fork_command

import rayprivacy as rp
from rayprivacy.questions.asker import known_phrases
from rayprivacy.questions.keep import distinct
from rayprivacy.questions.settings import PhrasesConfig, QuestionsConfig
from rayprivacy.runs.files import overridden
from rayprivacy.runs.questions_plan import question_stages

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
IN_TRAINING = """
from rayprivacy.runs import questions_stages as stages
real = stages.kept_asker
def killing(backbone, pairs, asker, how, told, *rest):
    return real(backbone, pairs, asker, how, lambda done: done == 3 and os.kill(os.getpid(), signal.SIGKILL), *rest)
stages.kept_asker = killing
"""
IN_BLOCKS = """
from rayprivacy.runs import questions_folder as folder
real, calls = folder.write_table, []
def killing(*given, **more):
    real(*given, **more)
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
folder.write_table = killing
"""


def content(folder):
    """Every file that people see, but for the seconds."""
    paths = [path for path in folder.rglob("*") if path.is_file() and ".work" not in path.parts]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    stages = json.loads(files.pop("stages.json"))
    del stages["seconds"]
    return files, stages


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_base):
    """A folder with public pages, and the words of the command that asks about them."""
    folder = tmp_path_factory.mktemp("pipeline")
    write_pages(folder / "pages.parquet", 40)
    keys = write_asked(folder) | {"questions.asker.base": str(tiny_base), "questions.retriever.batch": 16}
    given = [word for key, value in keys.items() for word in ("-o", f"{key}={yaml.safe_dump(value).splitlines()[0]}")]
    (folder / "keys.yaml").write_text(yaml.safe_dump(overridden({}, keys)))
    return folder, ["questions", "--public", "pages.parquet", *given]


@pytest.fixture(scope="module")
def first(place, local_ray):
    """What one actor wrote, and what the command said."""
    folder, words = place
    done = command([*words, "--out", "one", "--actors", "1"], folder)
    assert done.returncode == 0, done.stderr
    return content(folder / "one"), done.stdout


def table(folder, name="one"):
    return pq.read_table(folder / name / "questions.parquet")


def test_two_actors_and_a_file_of_keys_finish_what_was_killed_with_the_bytes_of_one(first, place):
    """Killed in the asker's training, and then in a stage of blocks."""
    folder, words = place
    out, work = [*words[:3], "--recipe", "keys.yaml", "--out", "two", "--actors", "2"], folder / "two" / ".work"
    for kill, resume, written in ((IN_TRAINING, [], False), (IN_BLOCKS, ["--resume"], True)):
        assert fork_command([*out, *resume], folder, on_this_ray() + kill).wait() == -signal.SIGKILL
        models = {path: path.stat().st_mtime_ns for path in work.glob("asker-*/*.safetensors")}
        assert (len(models) == 1, len([*work.glob("*.parquet")]) > 2) == (written, written)
    assert command([*out, "--resume"], folder).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in models} == models
    assert content(folder / "two") == first[0]


def test_the_funnel_is_that_of_the_table(first, place):
    (_, stages), said = first
    rows, counts = table(place[0]).to_pandas(), stages["counts"]
    assert counts["questions"] == len(rows) > 60
    assert counts["found_again"] == rows["roundtrip"].sum()
    assert counts["attributable"] == (rows["attribution"] == "attributable").sum()
    assert counts["kept"] == rows["kept"].sum() > 0
    assert counts["evidence"] == 40 * 3 * 2 >= counts["questions"] + sum(stages["left_out"].values())
    assert f"{counts['found_again']:,} found again" in said
    assert f"{counts['kept']:,} kept" in said
    assert (rows["attribution"][rows["kept"]] == "attributable").all()
    assert (rows["likelihood"] < 0).all()
    assert (
        rows["value"].notna().sum()
        == stages["counts"]["attributable"] - (~distinct(rows["question"][rows["attribution"] == "attributable"])).sum()
    )
    assert {"asked", "kept"} == stages["kl"].keys()
    seconds = json.loads((place[0] / "one" / "stages.json").read_text())["seconds"]
    settings = QuestionsConfig.parse(stages["inputs"]["questions"])
    assert [*seconds] == [stage.name for stage in question_stages(settings)], "as a plan says"
    assert stages["kept_by"] == max(stages["measured"], key=stages["measured"].get)


def test_questions_begin_with_public_phrases_and_answers_stand_in_their_evidence(first, place):
    rows = table(place[0]).to_pylist()
    pairs = [(row["sentence"], row["question"]) for row in asked_pages(16, 7)]
    assert {row["phrase"] for row in rows} <= set(known_phrases(pairs, PhrasesConfig()).counts)
    for row in rows:
        (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"].startswith(text, start)
        assert row["context"].startswith(row["evidence"], row["evidence_start"])
        assert text in row["evidence"]
        assert (row["answer_kind"] == "span") == (row["type"] is not None)
        assert row["answer_kind"] == "span" or text == row["evidence"]
    assert {row["answer_kind"] for row in rows} == {"span", "evidence"}


def test_another_selection_in_the_folder_trains_no_asker_and_keeps_the_other_settings(first, place):
    folder, out = place[0], place[0] / "one"
    work = {path: path.stat().st_mtime_ns for path in (out / ".work").rglob("*.safetensors")}
    before = table(folder)
    words = ["questions", "--public", "pages.parquet", "--out", "one", "-o", "questions.keep.by=roundtrip"]
    assert command(words, folder).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (out / ".work").rglob("*.safetensors")} == work
    after, kept = table(folder), np.array(table(folder)["kept"])
    same = ["id", "question", "answers", "attribution", "p_attributable"]
    assert after.select(same) == before.select(same)
    assert (np.array(after["roundtrip"])[kept]).all()
    assert after["value"].null_count == len(after)
    assert json.loads((out / "stages.json").read_text())["kept_by"] == "roundtrip"


def test_the_judge_is_beside_the_questions(first, place):
    judge = rp.Judge.load(place[0] / "one" / "model" / "judge")
    row = next(row for row in table(place[0]).to_pylist() if row["answer_kind"] == "span")
    label, probability = judge(row["question"], row["answers"]["text"][0], row["context"])
    assert label == row["attribution"]
    assert 0 < probability <= 1


def test_the_retriever_is_beside_them_with_figures_where_there_is_a_test(first, place):
    (_, stages), folder = first[0], place[0] / "one"
    found, rows = stages["retriever"], table(place[0]).to_pylist()
    assert len(found["learnt"]) == 2, "clozes, and then questions"
    assert ("test" in found) == any(row["kept"] and row["split"] == "test" for row in rows)
    passages = [*dict.fromkeys(row["context"] for row in rows)]
    retriever = rp.Retriever.load(folder / "model" / "retriever")
    asked = [row for row in rows if row["kept"]][:10]
    right = [retriever.over(passages).search(row["question"], top=20) for row in asked]
    assert any(passages.index(row["context"]) in dict(places) for row, places in zip(asked, right, strict=True))
