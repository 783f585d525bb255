"""Question answering as its users run it: private passages in; a model, passages, and questions about these out."""

import json
import signal

import pyarrow.parquet as pq
import pytest
from small_jobs import Job, ledger_lines
from small_questions import ASKED_MARK, MARK, small_job, write_passages
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.ledger.claim import claim
from rayprivacy.methods.question_answering import method
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.questions.table import ORIGIN
from rayprivacy.runs import directory, drive
from rayprivacy.runs.questions_plan import question_stages

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CHUNK = ["reserve", "start", "commit"]
PUBLIC = ("From passages to the questions that are kept", "First words of questions", "Twelve questions", "share kept")
INTERNAL = ("Evidence of held-out users", "Texts of held-out users")


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny_base, local_ray):
    """A run of which no stage behind the steps finds the private folder; it is back for the held-out figures."""
    job = small_job(tmp_path_factory.mktemp("asked"), tiny_base, MARK, ASKED_MARK)
    private, away = job.folder / "out" / "private", job.folder / "away"

    def moved_away(*given):
        private.rename(away)
        return real_writing(*given)

    def back(*given):
        assert not private.exists(), "a stage behind the steps made a private file"
        away.rename(private)
        return real_measuring(*given)

    real_writing, real_measuring = method._write, drive._measure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "_write", moved_away)
        patch.setattr(drive, "_measure", back)
        answer = job.run("out")
    assert answer.returncode == 0, answer.stderr
    (job.folder / "said").write_text(answer.stdout + answer.stderr)
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
    assert done.kinds() == ["create", "plan", *CHUNK * 2] or done.kinds() == ["create", *CHUNK * 2]
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
    assert {"words in common", "public pairs", "and all questions", "and those that are kept"} == {*figures["evidence"]}
    for each in (*figures["evidence"].values(), *figures["retrieval"].values()):
        assert 0 <= each["value"] <= 1
        assert each["interval"][0] <= each["value"] <= each["interval"][1]
    page = (out / "report.html").read_text()
    assert [title for title in (*PUBLIC, *INTERNAL) if title not in page] == []
    assert done.call("report", str(out), "--public").returncode == 0
    public = (out / "report-public.html").read_text()
    assert [title for title in PUBLIC if title not in public] == []
    assert [title for title in INTERNAL if title in public] == []


def test_another_way_of_asking_repeats_the_steps_and_pays_nothing(done):
    before, charged = set_of(done), ledger_lines(done.folder)
    assert done.run("other", "-o", "questions=null").returncode == 0
    assert not (done.folder / "other" / "questions").exists()
    for name in ("model/model.safetensors", "synthetic.parquet"):
        assert (done.folder / "other" / name).read_bytes() == (done.folder / "out" / name).read_bytes()
    assert ledger_lines(done.folder) == charged
    assert set_of(done) == before


def _drive(job, out, **more):
    recipe = load_recipe(job.recipe, {"privacy.ledger": f"sqlite:///{job.folder}/{out}.db", "pretrain": None})
    return drive.drive(method_of(recipe), recipe, job.folder / out, console=QUIET, **more).run.root


def test_what_was_asked_about_private_text_moves_no_step(tmp_path, tiny_base, local_ray, monkeypatch):
    """Two corpora have nothing to do with each other but their texts; here both have the coins and noise of one."""
    job = small_job(tmp_path, tiny_base)
    monkeypatch.setattr(ShardManifest, "corpus_digest", lambda *_: "d" * 64)
    one = _drive(job, "one", measured=False)
    assert not (one / "questions").exists(), "where nothing is measured, nothing is asked"
    write_passages(tmp_path, asked_mark=ASKED_MARK)
    other = _drive(job, "other", measured=False)
    assert (other / "model" / "model.safetensors").read_bytes() == (one / "model" / "model.safetensors").read_bytes()
    write_passages(tmp_path, mark=MARK)
    moved = _drive(job, "moved", measured=False)
    assert (moved / "model" / "model.safetensors").read_bytes() != (one / "model" / "model.safetensors").read_bytes()


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
LAST = "question set"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_run_that_is_killed_in_its_stages_ends_in_the_same_questions(done, tmp_path, tiny_base, whole):
    job = small_job(tmp_path, tiny_base, MARK, ASKED_MARK)
    recipe = load_recipe(job.recipe)
    stages = [stage.name for stage in method_of(recipe).planned(recipe).stages] if whole else [LAST]
    resume: list[str] = []
    for name in stages:
        killed = job.killed("out", KILL.format(name), *resume)
        assert killed.returncode == -signal.SIGKILL, (name, killed.stderr)
        assert not (tmp_path / "out" / directory.CERTIFICATE).exists()
        resume = ["--resume"]
    assert job.run("out", "--resume").returncode == 0
    assert set_of(job)[0].keys() == set_of(done)[0].keys()
    assert job.kinds() == done.kinds()
    assert job.run("again").returncode == 0  # the same release undisturbed, for nothing
    assert set_of(job, "again") == set_of(job)
    assert job.kinds() == done.kinds()


@pytest.mark.exhaustive
def test_questions_about_another_text_of_a_killed_run_go(tmp_path, tiny_base, local_ray):
    """The corpus changes before there is a certificate: what was asked about the former text is not taken up."""
    job = small_job(tmp_path, tiny_base, privacy={"composition": "rdp"})
    assert job.killed("out", KILL.format(LAST)).returncode == -signal.SIGKILL
    before = set_of(job)[1]["inputs"]["digest"]
    write_passages(tmp_path, mark=MARK)
    more = ["-o", "privacy.epsilon=1.0"]
    assert job.run("out", "--resume", *more).returncode in (0, 3)
    assert set_of(job)[1]["inputs"]["digest"] != before
