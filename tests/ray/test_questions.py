"""The command `questions` on a real Ray: the same bytes for any number of actors, and after a kill."""

import json
import signal

import pyarrow.parquet as pq
import pytest
from commands import command
from public_pages import content, write_pages
from small_jobs import on_this_ray
from zygote import fork_command

from rayprivacy.questions.table import ORIGIN
from rayprivacy.runs.questions import PUBLIC_ORIGIN

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
KILL = """
from rayprivacy.runs import {module} as questions
real = questions.{name}
calls = []
def killing(*given):
    calls.append(real(*given) if {after} else None)
    if len(calls) == {calls}:
        os.kill(os.getpid(), signal.SIGKILL)
    return calls[-1] if {after} else real(*given)
questions.{name} = killing
"""
POINTS = (  # a function of the run and its module, whether it is waited for, and at which call the process dies
    ("questions_stages", "write_texts", True, 1),
    ("questions_folder", "write_table", True, 2),
    ("questions_stages", "write_formats", False, 1),
)


def words(out, *more):
    return ["questions", "--public", "pages.parquet", "--document", "article", "--out", out, *more]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("public") / "pages.parquet", 90).parent  # four row groups and more


@pytest.fixture(scope="module")
def first(pages, local_ray):
    """What one actor wrote."""
    done = command(words("one", "--actors", "1"), pages)
    assert done.returncode == 0, done.stderr
    assert PUBLIC_ORIGIN in done.stdout
    return content(pages / "one")


@pytest.mark.exhaustive  # by day with all that is asked by a model: test_question_pipeline.py
def test_two_actors_write_the_same_bytes_as_one(first, pages):
    assert command(words("two", "--actors", "2"), pages).returncode == 0
    assert content(pages / "two") == first


@pytest.mark.exhaustive
def test_what_was_killed_at_every_point_is_finished_with_the_same_bytes(first, pages, tmp_path):
    out, resume, numbers, parts = tmp_path / "out", [], [], {}
    for module, name, after, calls in POINTS:
        kill = KILL.format(module=module, name=name, after=after, calls=calls)
        died = fork_command(words(str(out), "--actors", "1", *resume), pages, on_this_ray() + kill)
        assert died.wait() == -signal.SIGKILL
        assert not (out / "README.md").exists()
        before, parts = parts, {path.name: path.stat().st_mtime_ns for path in (out / ".work").glob("*.parquet")}
        del parts["texts.parquet"]  # written each time
        assert before.items() <= parts.items(), "none was written again"
        numbers.append(len(parts))
        resume = ["--resume"]
    assert numbers[:2] == [0, 2]
    assert numbers[2] > 2
    refused = command(words(str(out)), pages)
    assert refused.returncode == 2
    assert "add --resume" in refused.stderr
    kept = _watched(out, parts)
    assert command(words(str(out), "--resume"), pages).returncode == 0
    assert kept() == numbers[-1]
    assert content(out) == first


def _watched(out, before):
    """How many parts of the killed process were there to the end, untouched."""
    from rayprivacy.runs.questions_stages import Making

    real, seen = Making._written, []

    def look(*given):
        names = {path.name: path.stat().st_mtime_ns for path in (out / ".work").glob("*.parquet")}
        seen.append(sum(names.get(name) == stamp for name, stamp in before.items()))
        Making._written = real
        return real(*given)

    Making._written = look
    return lambda: seen[0]


def test_a_set_that_is_whole_is_left_alone(first, pages):
    stamps = {path: path.stat().st_mtime_ns for path in (pages / "one").rglob("*.parquet")}
    done = command(words("one", "--resume"), pages)
    assert done.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert content(pages / "one") == first


def test_card_and_files_say_that_nothing_is_protected(first, pages):
    folder = pages / "one"
    card = (folder / "README.md").read_text()
    assert card.index("## Protection") < card.index("## What it is")
    assert f"None: {PUBLIC_ORIGIN}." in card
    assert pq.read_schema(folder / "questions.parquet").metadata[ORIGIN].decode() == PUBLIC_ORIGIN
    assert json.loads((folder / "squad.json").read_text())["origin"] == PUBLIC_ORIGIN
    for name in ("corpus", "queries"):
        lines = (folder / "beir" / f"{name}.jsonl").read_text().splitlines()
        assert all(json.loads(line)["metadata"] == {"origin": PUBLIC_ORIGIN} for line in lines)
    assert not (folder / "certificate.json").exists()
    assert not (folder / ".work").exists()


def test_a_text_that_gives_no_question_is_one_sentence_and_exit_code_1(tmp_path):
    write_pages(tmp_path / "pages.parquet", 4)
    done = command([*words("out")[:3], "--text", "article", "--out", "out"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rayprivacy: no question came of 12 texts: give longer ones.")
    assert (tmp_path / "out" / ".work" / "texts.parquet").exists()
