"""Question answering as its users run it: private passages in; a model, passages, and questions about these out."""

import json
import shlex
import shutil
import signal

import pyarrow.parquet as pq
import pytest
from commands import command
from question_sets import write_space
from small_jobs import Job, ledger_lines
from small_questions import ASKED_MARK, MARK, small_job, write_passages
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.ledger.claim import claim
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.questions.table import ORIGIN
from rayprivacy.runs import directory, drive
from rayprivacy.runs.questions_plan import WRITER, question_stages

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CHUNK = ["reserve", "start", "commit"]
LAST = "question set"
PUBLIC = (
    "From passages to the questions that are kept",
    "First words of questions",
    "Twelve questions",
    "Share of questions",
)
INTERNAL = ("Evidence of held-out users", "Texts of held-out users")


# Kills the process when a stage has done its work, and before anybody is told so.
KILL = """
from contextlib import contextmanager
from rayprivacy.runs.directory import Run
real = Run.stage
@contextmanager
def dying(self, name):
    with real(self, name):
        yield
        if name == {!r}:
            os.kill(os.getpid(), signal.SIGKILL)
Run.stage = dying
"""
# Takes the private folder away when the model is there; what is measured on private text finds it again.
APART = """
from rayprivacy.methods.question_answering import method
from rayprivacy.runs import drive
writing, measuring = method._write, drive._measure
def away(context, *given):
    (context.run.root / "private").rename(context.run.root.parent / "away")
    return writing(context, *given)
def back(run, *given):
    assert not (run.root / "private").exists(), "a stage behind the steps made a private file"
    (run.root.parent / "away").rename(run.root / "private")
    return measuring(run, *given)
method._write, drive._measure = away, back
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny_base, local_ray):
    """A run that was killed when it had learnt to ask, and resumed; no stage behind the steps has a private folder."""
    job = small_job(tmp_path_factory.mktemp("asked"), tiny_base, MARK, ASKED_MARK)
    killed = job.killed("out", APART + KILL.format(WRITER))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (job.folder / "out" / directory.CERTIFICATE).exists()
    (job.folder / "away").rename(job.folder / "out" / "private")
    answer = job.killed("out", APART, "--resume")
    assert answer.returncode == 0, answer.stderr
    (job.folder / "said").write_text(killed.stderr + answer.stdout + answer.stderr)
    return job


def set_of(job: Job, out="out"):
    """The files of a question set, without what is kept for another one, and what is said of it without seconds."""
    root = job.folder / out / "questions"
    paths = [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] != ".work"]
    files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    stages = json.loads(files.pop("stages.json"))
    return files, {name: said for name, said in stages.items() if name != "seconds"}


def test_a_run_leaves_questions_under_its_certificate(done):
    out, certificate = done.folder / "out", rp.Result(done.folder / "out").certificate
    assert done.kinds() == ["create", *CHUNK * 2]
    table = pq.read_table(out / "questions" / "questions.parquet")
    assert len(table) > 10
    assert 0 < sum(table["kept"].to_pylist()) <= len(table)
    assert set(table["context"].to_pylist()) <= set(pq.read_table(out / "synthetic.parquet")["text"].to_pylist())
    said = f"made of the text of release {certificate.release_id}. {claim(certificate)}"
    assert table.schema.metadata[ORIGIN].decode() == said
    assert "## Protection" in (out / "questions" / "README.md").read_text()
    assert rp.Result(out).questions().count() == len(table)
    names = {stage.name for stage in question_stages(load_recipe(out / "recipe.yaml").questions)}
    assert names <= rp.Result(out).metrics["timings_s"].keys()


def test_marks_of_private_text_and_of_what_was_asked_about_it_stay_inside(done):
    outside = [path for path in done.folder.rglob("*") if path.is_file() and "private" not in path.parts]
    searched = [path for path in outside if path.name != "talk.parquet"]
    assert len(searched) > 20
    for path in searched:
        data = path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            data += repr((table.schema.metadata, table.to_pylist())).encode()
        for mark in (MARK, ASKED_MARK):
            assert mark.encode() not in data, path
    assert "user-" not in (done.folder / "said").read_text()


def test_the_report_shares_what_was_released_and_keeps_what_was_measured(done):
    out, figures = done.folder / "out", done.metrics("out")["questions"]
    assert figures["releasable"] is False
    assert figures["questions"] > 3
    assert len(figures["evidence"]) == 4
    for each in (*figures["evidence"].values(), *figures["retrieval"].values()):
        assert 0 <= each["value"] <= 1
        assert each["interval"][0] <= each["value"] <= each["interval"][1]
    page = (out / "report.html").read_text()
    assert [title for title in (*PUBLIC, *INTERNAL) if title not in page] == []
    assert done.call("report", str(out), "--public").returncode == 0
    public = (out / "report-public.html").read_text()
    assert [title for title in PUBLIC if title not in public] == []
    assert [title for title in INTERNAL if title in public] == []


@pytest.mark.exhaustive
def test_a_run_that_nobody_killed_asks_the_same_and_pays_nothing(done):
    charged = ledger_lines(done.folder)
    assert done.run("again").returncode == 0
    assert done.certificate("again") == done.certificate("out")
    for name in ("model/model.safetensors", "synthetic.parquet"):
        assert (done.folder / "again" / name).read_bytes() == (done.folder / "out" / name).read_bytes()
    assert set_of(done, "again") == set_of(done)
    assert ledger_lines(done.folder) == charged
    assert done.run("again", "--resume", "-o", "questions.keep.by=random").returncode == 0, "as a refusal may advise"
    assert set_of(done, "again")[1]["kept_by"] == "random"
    assert done.certificate("again") == done.certificate("out")
    assert ledger_lines(done.folder) == charged
    answer = done.run("again", "--resume", "-o", "questions=null", "-o", "training.steps=3")
    assert answer.returncode == 2
    assert "holds a run of another recipe" in answer.stderr


@pytest.mark.exhaustive  # by day of a toy's text: test_questions_of_a_run.py
def test_a_search_among_the_questions_pays_nothing_and_its_best_keys_make_a_set(done, tmp_path):
    ledger = (done.folder / "ledger.db").read_bytes()
    out = shutil.copytree(done.folder / "out", tmp_path / "out", ignore=shutil.ignore_patterns("private"))
    certificate = (out / directory.CERTIFICATE).read_bytes()
    space = write_space(tmp_path, release="out", fixed={"questions": {"keep": {"by": "value"}}}, trials=2)
    found = command(["tune", str(space), "--out", "search"], tmp_path)
    assert found.returncode == 0, found.stderr
    words = shlex.split(next(line for line in found.stdout.splitlines() if line.startswith("rayprivacy questions")))
    assert words[2] == "out"
    assert command(words[1:], tmp_path).returncode == 0
    said = json.loads((out / "questions" / "stages.json").read_text())
    share = said["inputs"]["questions"]["keep"]["share"]
    assert f"questions.keep.share={share}" in words
    assert said["kept_by"] == "value"
    assert said["counts"]["kept"] == round(share * said["counts"]["questions"])
    assert (out / directory.CERTIFICATE).read_bytes() == certificate
    assert (done.folder / "ledger.db").read_bytes() == ledger
    # What was asked is as it was, so the search goes on.
    again = command(["tune", str(space), "--out", "search", "--resume", "-o", "trials=3"], tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(pq.read_table(tmp_path / "search" / "trials.parquet")) == 3


@pytest.mark.exhaustive
def test_another_way_of_asking_repeats_the_steps_and_pays_nothing(done):
    charged = ledger_lines(done.folder)
    assert done.run("other", "-o", "questions=null").returncode == 0
    assert not (done.folder / "other" / "questions").exists()
    for name in ("model/model.safetensors", "synthetic.parquet"):
        assert (done.folder / "other" / name).read_bytes() == (done.folder / "out" / name).read_bytes()
    assert ledger_lines(done.folder) == charged


def _drive(job, out):
    """As a search does: nothing is measured, so nothing is asked."""
    recipe = load_recipe(job.recipe, {"pretrain": None})
    root = drive.drive(method_of(recipe), recipe, job.folder / out, console=QUIET, measured=False).run.root
    assert not (root / "questions").exists()
    return (root / "model" / "model.safetensors").read_bytes()


def test_what_was_asked_about_private_text_moves_no_step(tmp_path, tiny_base, local_ray, monkeypatch):
    """Two corpora have nothing to do with each other but their texts; here both have the coins and noise of one."""
    job = small_job(tmp_path, tiny_base)
    monkeypatch.setattr(ShardManifest, "corpus_digest", lambda *_: "d" * 64)
    steps = _drive(job, "one")
    write_passages(tmp_path, asked_mark=ASKED_MARK)
    assert _drive(job, "other") == steps
    write_passages(tmp_path, mark=MARK)
    with pytest.raises(rp.ReleaseError, match="was made before"):
        _drive(job, "moved")


def test_a_cell_that_is_no_list_is_refused_before_anything_is_charged(tmp_path, tiny_base, local_ray):
    job = small_job(tmp_path, tiny_base, asked_mark=ASKED_MARK)
    table = pq.read_table(tmp_path / "talk.parquet")
    cells = [cell.replace('"answer"', '"reply"') for cell in table["asked"].to_pylist()]
    place = table.column_names.index("asked")
    pq.write_table(table.set_column(place, "asked", [cells]), tmp_path / "talk.parquet")
    answer = job.run("out")
    assert answer.returncode == 2
    assert "a cell of that column is no JSON list of objects with 'question' and 'answer'" in answer.stderr
    assert ASKED_MARK not in answer.stdout + answer.stderr
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_in_each_of_its_stages_ends_in_the_same_questions(tmp_path, tiny_base, local_ray):
    job = small_job(tmp_path, tiny_base)
    recipe = load_recipe(job.recipe)
    resume: list[str] = []
    for stage in method_of(recipe).planned(recipe).stages:
        killed = job.killed("out", KILL.format(stage.name), *resume)
        assert killed.returncode == -signal.SIGKILL, (stage.name, killed.stderr)
        assert not (tmp_path / "out" / directory.CERTIFICATE).exists()
        resume = ["--resume"]
    assert job.run("out", "--resume").returncode == 0
    assert job.kinds() == ["create", *CHUNK * 2]
    assert job.run("again").returncode == 0  # the same release undisturbed, for nothing
    assert set_of(job, "again") == set_of(job)
    assert job.kinds() == ["create", *CHUNK * 2]


@pytest.mark.exhaustive
def test_questions_about_another_text_of_a_killed_run_go(tmp_path, tiny_base, local_ray):
    """The corpus changes before there is a certificate: what was asked about the former text is not taken up."""
    job = small_job(tmp_path, tiny_base)
    recipe = load_recipe(job.recipe)
    plan, terms = method_of(recipe).planned(recipe), (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE)
    with rp.Ledger.open(recipe.privacy.ledger) as ledger:  # an account that can pay for two releases
        ledger.create_account("talk", *terms, Budget(30, recipe.privacy.delta), "rdp", plan=plan.charges)
    assert job.killed("out", KILL.format(LAST)).returncode == -signal.SIGKILL
    before = set_of(job)[1]["inputs"]["digest"]
    write_passages(tmp_path, mark=MARK)
    answer = job.run("out", "--resume")
    assert answer.returncode == 0, answer.stderr
    assert set_of(job)[1]["inputs"]["digest"] != before
