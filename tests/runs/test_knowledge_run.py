"""Knowledge as a run: facts of many users come out, what few state does not, and each count is drawn and paid once."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from knowledge_bench import FACTS, MARK, PARTS, USERS, KnowledgeBench, facts_of, talk

import rayprivacy as rp
from rayprivacy.knowledge.reading import Vote
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.knowledge import counting, plan
from rayprivacy.release import noise
from rayprivacy.release.thresholded import ThresholdedCounts
from rayprivacy.runs.directory import Run

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(600)]
CHARGED = ["committed"] * 2


@pytest.fixture
def bench(tmp_path):
    return KnowledgeBench(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, local_ray):
    """A bench with one finished run, `out`, whose corpus nobody changes."""
    found = KnowledgeBench(tmp_path_factory.mktemp("knowledge"))
    found.run()
    return found


def _states(bench):
    return [state for _, _, state in bench.charges()]


def test_a_run_leaves_what_many_users_state(shared):
    root = shared.folder / "out"
    assert facts_of(root) == FACTS
    for row in pq.read_table(root / "facts.parquet").to_pylist():
        assert abs(row["count"] - USERS) < 15
        assert row["low"] < row["count"] < row["high"]
    result = rp.Result(root)
    texts = [row["text"] for row in result.texts().take_all()]
    assert "The type of Zorvel is fire. The diet of Zorvel is berries." in texts
    assert result.questions().count() == len(FACTS)
    squad = json.loads((root / "questions" / "squad.json").read_text())
    assert {each["title"] for each in squad["data"]} == {"Mirak", "Zorvel"}
    for name in ("beir/corpus.jsonl", "beir/qrels/train.tsv", "ragas.jsonl", "README.md"):
        assert (root / "questions" / name).stat().st_size, name
    assert "not as a source of facts" not in (root / "README.md").read_text().lower()


def test_the_certificate_names_both_counts_and_their_deltas(shared):
    certificate = rp.Result(shared.folder / "out").certificate
    assert [stage["name"] for stage in certificate.stages] == [plan.NAMES, plan.ANSWERS, "all stages together"]
    *thresholds, known = certificate.figures.values()
    assert ["delta_T 2.5e-07" in figure for figure in thresholds] == [True, True]
    assert known.startswith("type, diet (one of 2): about ")
    assert "5e-07 kept for thresholds" in certificate.accountant.claim
    assert _states(shared) == CHARGED
    with Ledger.open(f"sqlite:///{shared.folder}/ledger.db") as ledger:
        taken, kept = ledger.status("talk").thresholds
        assert taken == pytest.approx(kept) == pytest.approx(5e-7)
        ledger.verify()


def test_the_report_shows_facts_and_thresholds_and_may_be_shared(shared):
    root = shared.folder / "out"
    page = Path(rp.report(root, public=True)).read_text()
    for shown in ("Facts of most users", "Facts by attribute", "Chance to be released", "Support of facts", "berries"):
        assert shown in page
    assert MARK not in page


def test_what_one_user_states_is_nowhere_but_in_the_private_folder(shared, capfd):
    said = shared.run().path  # once more, with whatever it says
    seen = "".join(capfd.readouterr())
    files = [path for path in shared.folder.rglob("*") if path.is_file() and "private" not in path.parts]
    searched = [path for path in files if path.name != "talk.parquet"]
    assert len(searched) > 20
    for path in searched:
        data = path.read_bytes()
        if path.suffix == ".parquet":
            data += repr((pq.read_schema(path).metadata, pq.read_table(path).to_pylist())).encode()
        assert MARK.encode() not in data.lower(), path
        assert b"user-1" not in data, path
    assert MARK not in seen.lower()
    private = list((said / "private" / "counts").rglob("*.parquet"))
    assert len(private) == 2 * (PARTS + 1), "a test that looks where nothing could be"
    assert any(MARK in repr(pq.read_table(path).to_pylist()) for path in private)
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)


_DIGEST = re.compile(r"\b[0-9a-f]{16,64}\b")
_TIMED = re.compile(r'("time"|"seconds"|"left_s"): [0-9.]+')


def _shown(bench, out):
    """All that a run shows, without digests, places and times."""
    root, found = bench.folder / out, {}
    for path in root.rglob("*"):
        if path.is_file() and path.relative_to(root).parts[0] not in ("private", "plots", "ledger_head"):
            text = repr(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_text()
            text = text.replace(str(bench.folder), "<folder>")
            found[str(path.relative_to(root))] = _TIMED.sub(r"\1", _DIGEST.sub("<digest>", text))
    return found


def test_how_many_keys_stay_under_the_threshold_shows_nowhere(tmp_path, monkeypatch):
    """Two corpora with the same facts, one with nine times the secrets; the noise is none, so that it hides nothing."""
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: signal)
    shown = []
    for secrets in (1, 9):
        folder = tmp_path / str(secrets)
        folder.mkdir()
        bench = KnowledgeBench(folder)
        bench.write(talk(secrets=secrets))
        result = bench.run(
            overrides={"knowledge.names.most": 40, "knowledge.answers.most": 40, "privacy.epsilon": 60.0}
        )
        assert facts_of(folder / "out") == FACTS
        rp.report(result.path, public=True)
        shown.append(_shown(bench, "out"))
        del shown[-1]["report.html"]  # which has times, as the metrics do
        shown[-1]["metrics.json"] = repr({**result.metrics, "timings_s": None})
    assert shown[0].keys() == shown[1].keys()
    for name, text in shown[0].items():
        assert text == shown[1][name], name


@pytest.mark.parametrize("before", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_a_run_killed_at_each_stage_is_drawn_and_charged_once(shared, before, monkeypatch):
    """One run dies at every stage; its end is that of a run which nobody kills, because the ledger serves the draws."""
    bench, out = shared, f"killed {before}"
    real = Run.stage

    class KilledError(BaseException):
        pass

    drawn = []
    monkeypatch.setattr(ThresholdedCounts, "draw", lambda *given: drawn.append(given))
    for stage in ("corpus by user", plan.NAMES, plan.ANSWERS, plan.FACTS):

        def dying(self, name, stage=stage):
            if name == stage and before:
                raise KilledError
            return real(self, name) if name != stage else _Ended(real(self, name), KilledError)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "stage", dying)
            with pytest.raises(KilledError):
                bench.drive(out)
    assert facts_of(bench.drive(out).root) == FACTS
    for name in ("certificate.json", "facts.parquet", "synthetic.parquet"):
        assert (bench.folder / out / name).read_bytes() == (bench.folder / "out" / name).read_bytes()
    assert _states(bench) == CHARGED
    assert drawn == [], "what the ledger holds is served"


class _Ended:
    """A stage that dies when its work is done."""

    def __init__(self, stage, error):
        self.stage, self.error = stage, error

    def __enter__(self):
        return self.stage.__enter__()

    def __exit__(self, *raised):
        self.stage.__exit__(*raised)
        raise self.error


@pytest.mark.parametrize(
    "died", ["commit_output", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("draw", "output"))]
)
def test_a_run_that_dies_around_a_draw_is_charged_once_and_served_one_draw(bench, died, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ThresholdedCounts if died == "draw" else Ledger, died, die)
        with pytest.raises(KeyboardInterrupt):
            bench.drive()
    first = bench.drive().root
    kept = (first / "facts.parquet").read_bytes()
    assert (bench.drive("again").root / "facts.parquet").read_bytes() == kept
    assert facts_of(first) == FACTS
    assert _states(bench) == CHARGED


def test_a_run_that_goes_on_with_other_parts_counts_nobody_twice(bench, monkeypatch):
    """`resources` may change when a run is resumed; here the noise is none, so that counts are numbers of users."""
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: signal)
    real = counting.on_numbers

    def dying(work, job, *given):
        if work is counting._add_up and job[0].asked.names is not None:
            raise KeyboardInterrupt
        return real(work, job, *given)

    with monkeypatch.context() as patch:
        patch.setattr(counting, "on_numbers", dying)
        with pytest.raises(KeyboardInterrupt):
            bench.drive()
    run = bench.drive(overrides={"resources.parts": PARTS + 4})
    assert {row["count"] for row in pq.read_table(run.root / "facts.parquet").to_pylist()} == {USERS}


def test_another_corpus_is_another_release_and_another_recipe_is_refused(bench):
    bench.drive()
    bench.write(talk(USERS + 1))
    with pytest.raises(rp.BudgetRefusedError):
        bench.drive()
    with pytest.raises(rp.ConfigError, match="a run of another recipe"):
        bench.drive(overrides={"knowledge.rounds": 2})
    assert _states(bench) == CHARGED


def test_public_names_leave_the_whole_budget_to_answers_and_are_held_to(bench, monkeypatch):
    """Their known answers draw noise, also about the one that nobody mentions."""
    drawn, real = [], noise.add_discrete_gaussian
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda *given: drawn.append(len(given[0])) or real(*given))
    path = bench.folder / "names.txt"
    path.write_text("The Zorvel\nMirak\n\nNobody's Thing\n")
    ours = {"knowledge.names.file": str(path)}
    result = bench.run(overrides=ours)
    assert facts_of(result.path).items() >= FACTS.items()  # chance may answer what nobody does
    assert _states(bench) == ["committed"]
    assert result.metrics["synthetic"]["names"] == 3
    assert drawn[:-1] == [2] * (3 * 2), "names by attributes that have a list of two values each"
    path.write_text("Zorvel\n")
    with pytest.raises(rp.ConfigError, match=r"the names of .* changed since the run began"):
        bench.drive(overrides=ours)
    with pytest.raises(rp.BudgetRefusedError):  # in another folder: another question, another charge
        bench.drive("other", overrides=ours)
    assert _states(bench) == ["committed"]


def test_a_second_round_asks_for_what_is_open_and_is_a_charge_of_its_own(bench, monkeypatch):
    asked, real = {}, counting.counted

    def counted(job, parts, told):
        sums = real(job, parts, told)
        asked[job.asked.settled] = {Vote.of(key)[:2] for key in sums.reveal()} if job.asked.names else set()
        return sums

    monkeypatch.setattr(counting, "counted", counted)
    run = bench.drive(overrides={"knowledge.rounds": 2})
    assert facts_of(run.root) == FACTS
    assert _states(bench) == ["committed"] * 3
    assert asked[frozenset(FACTS)] == set()
    assert asked[frozenset()] == FACTS.keys()


def test_a_corpus_of_which_nothing_is_released_is_a_run_too(bench, tiny_base):
    bench.write(talk(users=2))
    model = {"model.base": str(tiny_base), "knowledge.model": {"steps": 1}}
    result = bench.run(overrides={"privacy.epsilon": 1.0, **model})
    assert facts_of(result.path) == {}
    assert result.texts().count() == result.questions().count() == 0
    assert not (result.path / "model").exists()
    assert _states(bench) == ["committed"], "without names nothing is asked"


def test_a_model_may_learn_the_facts_and_costs_nothing(shared, tiny_base):
    model = {"model.base": str(tiny_base), "knowledge.model": {"steps": 3, "batch": 2, "max_tokens": 32}}
    result = shared.run("learnt", overrides=model)
    assert result.model().config.model_type == "llama"
    assert result.metrics["synthetic"]["learning"].keys() == {"loss_before", "loss_after"}
    assert (
        "no private text" in (result.path / "model" / "README.md").read_text()
        or "## Protection" in (result.path / "model" / "README.md").read_text()
    )
    assert _states(shared) == CHARGED, "the release is the one that was paid for"
    weights = (result.path / "model" / "model.safetensors").stat().st_mtime_ns
    shared.run("learnt", overrides=model)
    assert (result.path / "model" / "model.safetensors").stat().st_mtime_ns == weights
