"""Questions about the text of whole runs: under their certificates, without the private side, and for nothing."""

import json
import signal

import pyarrow.parquet as pq
import pytest
import toy_method
import toy_sanitised
from commands import command
from public_pages import content, write_asked
from question_sets import write_set, write_space
from small_jobs import on_this_ray
from toy_bench import QUIET, SPOKEN, USERS
from zygote import fork_command

import rayprivacy as rp
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.questions.table import ORIGIN
from rayprivacy.reporting.cards import protection
from rayprivacy.reporting.claim import claim

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
TOLD = (
    "Mr. Holm",
    "in 1834",
    "of Juniper Lake",
    "saw seven mills",
    "on 7 May 1901",
    "near Cedar Bridge",
    "for 12 miles",
)
SHORT = ["-o", "questions.entities=rules", "-o", "questions.evidence.words=[2, 200]", "--actors", "1"]
SAYS = {  # methods, and how the card says what is protected
    "toy": "Users of the corpus are protected with",
    "toy_selective": "Releases of the account are selectively differentially private",
    "toy_sanitised": "Releases of the account are",
}
KILL = """
from rayprivacy.runs import questions_stages
questions_stages.write_formats = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=SAYS)
def released(request, bench, monkeypatch):
    """A finished run whose text tells something, with its private side and its ledger taken away."""
    for method in (toy_method, toy_sanitised):
        monkeypatch.setattr(method, "WORDS", TOLD)
    result = bench.run(overrides={"method": request.param})
    charges = bench.charges()
    away = bench.folder / "away"
    away.mkdir()
    for path in (result.path / "private", *bench.folder.glob("ledger.db*"), *bench.folder.glob("*.key")):
        path.rename(away / path.name)
    yield result
    assert not (bench.folder / "ledger.db").exists()
    for path in away.iterdir():
        path.rename((result.path if path.name == "private" else bench.folder) / path.name)
    assert bench.charges() == charges


def test_released_text_is_asked_about_under_its_certificate(request, released):
    method, folder = released.recipe.method, released.path / "questions"
    beside = {path: path.stat().st_mtime_ns for path in released.path.rglob("*") if path.is_file()}
    done = command(["questions", str(released.path), *SHORT], released.path.parent)
    assert done.returncode == 0, done.stderr
    certificate, card = released.certificate, (folder / "README.md").read_text()
    assert SAYS[method] in done.stdout
    assert protection(certificate) in card
    assert SAYS[method] in card
    assert card.index("## Protection") < card.index("## What it is")
    said = f"made of the text of release {certificate.release_id}. {claim(certificate)}"
    assert pq.read_schema(folder / "questions.parquet").metadata[ORIGIN].decode() == said
    assert json.loads((folder / "squad.json").read_text())["origin"] == said
    questions, texts = released.questions().to_pandas(), {row["text"] for row in released.texts().take_all()}
    assert len(questions) > 0
    assert set(questions["context"]) <= texts
    files, _, _ = content(folder)
    hidden = [SPOKEN.encode(), *(f"user-{user}".encode() for user in range(USERS))]
    assert not [name for name, data in files.items() if any(mark in data for mark in hidden)]
    assert {path: path.stat().st_mtime_ns for path in beside} == beside
    assert not (released.path / "private").exists()

    if method != "toy":
        return  # what a kill leaves knows nothing of the method
    died = released.path.with_name("copy")
    folder.rename(died)
    process = fork_command(["questions", str(released.path), *SHORT], released.path.parent, on_this_ray() + KILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "README.md").exists()
    assert rp.ask_questions(released, SHORT[1:4:2], resume=True, console=QUIET)["counts"]["questions"] == len(questions)
    assert content(folder) == content(died)


def told(folder):
    """All that stands in the files of a set, its hidden ones too, but for the weights of models."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    return [str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_text() for path in files]


@pytest.mark.parametrize("released", ["toy"], indirect=True)
def test_a_model_asks_about_released_text_without_the_private_side_and_for_nothing(released, tiny_base, tmp_path):
    (tmp_path / "learnt").mkdir()
    wide = {"questions.evidence.words": [2, 200], "questions.keep.attributable": False}
    # Whole questions, and many: which of a tiny model's few are whole differs from processor to processor.
    many = {"questions.phrases.how": "none", "questions.phrases.most": 8, "questions.asker.steps": 120}
    keys = write_asked(tmp_path / "learnt") | wide | many
    folder = released.path / "questions"
    found = rp.ask_questions(released, keys, actors=1, console=QUIET)
    assert found["counts"]["kept"] > 0
    assert found["inputs"]["questions"]["asker"]["base"] == str(tiny_base), "that of the run"
    rows, texts = released.questions().take_all(), {row["text"] for row in released.texts().take_all()}
    assert {row["context"] for row in rows} <= texts
    hidden = [SPOKEN, *(f"user-{user}" for user in range(USERS))]
    assert not [said for said in told(folder) if any(mark in said for mark in hidden)]
    assert protection(released.certificate) in (folder / "README.md").read_text()
    assert not (released.path / "private").exists()
    # Nothing private is declared public: neither the corpus nor a folder around it.
    for name, place in (("pairs.source", "talk.parquet"), ("value.annotations", ".")):
        keys = {f"questions.{name}": str(released.path.parent / place)}
        with pytest.raises(rp.ConfigError, match=rf"questions\.{name} is .* corpus\.source, and is declared public"):
            rp.ask_questions(released, keys, console=QUIET)


@pytest.mark.parametrize("released", ["toy"], indirect=True)
def test_a_claim_that_fell_is_said_in_every_file(released):
    settings, folder = SHORT[1:4:2], released.path / "questions"
    rp.ask_questions(released.path, settings, console=QUIET)
    before = content(folder)
    with pytest.raises(rp.ConfigError, match="holds questions already: add --resume to finish them"):
        rp.ask_questions(released.path, settings, console=QUIET)
    stored = released.path / "certificate.json"
    warned = json.loads(stored.read_text()) | {"warnings": ["somebody ran without noise"]}
    stored.write_text(json.dumps(warned))
    found = rp.ask_questions(released.path, settings, resume=True, console=QUIET)
    assert "Warning: do not rely on a guarantee" in found["origin"]
    assert found["origin"] in (folder / "squad.json").read_text()
    card = (folder / "README.md").read_text()
    assert protection(Certificate.model_validate(warned)) in card
    assert "treat all of them as private" in card
    assert "differential-privacy" not in card
    assert content(folder)[1:] == before[1:]


@pytest.mark.parametrize("released", ["toy"], indirect=True)
def test_a_free_search_of_a_release_needs_neither_the_private_side_nor_a_ledger(released, tiny_base, tmp_path):
    write_set(tmp_path, tiny_base).rename(released.path / "questions")
    before = {path: path.read_bytes() for path in released.path.rglob("*") if path.is_file()}
    space = write_space(tmp_path, release=str(released.path), trials=1)
    done = command(["tune", str(space), "--out", "search"], released.path.parent)
    assert done.returncode == 0, done.stderr
    assert f"rayprivacy questions {released.path.name} -o questions.keep.by=value -o" in done.stdout
    assert {path: path.read_bytes() for path in released.path.rglob("*") if path.is_file()} == before
    assert not [*released.path.parent.glob("*.db*"), *released.path.parent.glob("*.key")]
    assert not (released.path / "private").exists()
