"""SanText as a run: one charge for one file, the same bytes however it is run, and nothing of the corpus elsewhere."""

import json
import signal
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from santext_bench import charges_of, ledger_of, santext_bench
from small_jobs import joining
from toy_bench import QUIET, SPOKEN, USERS
from zygote import fork_command

import rayprivacy as rp
from rayprivacy.api import Result
from rayprivacy.cli import main
from rayprivacy.core.units import AccountKind
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.drive import drive
from rayprivacy.sanitize.documents import split, tidy

pytestmark = pytest.mark.usefixtures("local_ray")
MARK = "zqxjvk"


@pytest.fixture
def bench(tmp_path, tiny_base):
    return santext_bench(tmp_path, tiny_base)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny_base):
    """A bench for tests that change nothing of its corpus; `finished` is its run."""
    return santext_bench(tmp_path_factory.mktemp("santext"), tiny_base)


@pytest.fixture(scope="module")
def finished(shared, local_ray):
    return shared.run("finished")


def _run(bench, name, measured=False, **overrides):
    """A run with a ledger of its own, up to the certificate or its figures, without a report."""
    recipe = bench.load({"privacy.ledger": ledger_of(bench, name), **overrides})
    return Result(drive(method_of(recipe), recipe, bench.folder / name, console=QUIET, measured=measured).run.root)


def _rows(result):
    return pq.read_table(result.path / "sanitized.parquet").to_pylist()


def _bytes(result):
    return (result.path / "sanitized.parquet").read_bytes()


def _change(bench, column, values):
    """Put other values into the corpus, in turn."""
    table = pq.read_table(bench.folder / "talk.parquet")
    values = (values * len(table))[: len(table)]
    known = {name: table[name] for name in table.column_names}
    pq.write_table(pa.table(known | {column: values}), bench.folder / "talk.parquet")


def test_a_run_leaves_a_release_and_says_what_it_is_worth(shared, finished):
    certificate, documents = finished.certificate, [row["document"] for row in _rows(finished)]
    assert len(documents) == USERS * 4
    assert documents == sorted(set(documents))
    assert (certificate.kind, certificate.relation) == (AccountKind.METRIC_LOCAL, "replace")
    assert [event.kind for event in certificate.events] == ["metric-local-sensitive"]
    plan = rp.plan(shared.load())
    assert plan.epsilon == pytest.approx(certificate.spent_diagnostic.epsilon, rel=1e-9)
    assert list(certificate.figures)[:3] == ["Epsilon of a document", "Epsilon of a user", "Epsilon of a word"]
    document = float(certificate.figures["Epsilon of a document"].split(",")[0])
    assert plan.epsilon == pytest.approx(4 * document, rel=1e-4)
    assert "no meaningful guarantee" in certificate.warnings[0]
    assert any("the 60 most frequent words" in each for each in certificate.assumptions)
    assert len(shared.charges()) == 1
    for page, later in (("certificate.md", "Spent up to this release"), ("README.md", "What it is")):
        text = (finished.path / page).read_text()
        assert text.index("Epsilon of a document") < text.index(later)


def test_the_report_shows_charts_and_attacks_and_shares_only_the_charts(finished):
    page, inference = (finished.path / "report.html").read_text(), finished.metrics["inference"]
    assert SPOKEN not in page, "figures of private text, and never the text"
    pairs = (finished.path / "private" / "pairs.txt").read_text()
    assert pairs.count("before: ") == pairs.count("after:  ") == 12, "however few users the first part has"
    assert SPOKEN in pairs
    assert set(inference["success"]) == {"mask", "identity", "bayes", "context"}
    assert inference["words"] >= 20
    for shown in ("N_x: how often", "S_x and S*_y", "Bayes, with the table and a language model", "Epsilon of a word"):
        assert shown in page
    public = Path(rp.report(finished.path, public=True)).read_text()
    assert "N_x: how often" in public
    assert SPOKEN not in public
    assert "Guessed" not in public
    assert {path.name for path in (finished.path / "plots").glob("*kept*")} == {"kept.png"}


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_any_number_of_parts_writes_the_same_bytes(shared, finished, parts):
    assert _bytes(_run(shared, f"parts{parts}", **{"resources.parts": parts})) == _bytes(finished)


@pytest.mark.parametrize(
    ("key", "value"), [("sanitize.layout", "keep"), ("privacy.account", "other"), ("privacy.key", "other.key")]
)
def test_what_a_release_is_made_of_changes_its_coins(shared, finished, key, value):
    """Two draws from one coin would be worth more than two charges."""
    other = _run(shared, key, **{key: str(shared.folder / value) if key == "privacy.key" else value})
    assert {row["document"] for row in _rows(finished)}.isdisjoint(row["document"] for row in _rows(other))


CRASHES = {
    "in a task": "rayprivacy.work.mapping.in_tasks",
    "before the commit": "rayprivacy.release.files.digest_file",
    "after the commit": "pathlib.Path.replace",
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_dead_run_is_resumed(shared, finished, monkeypatch, crash):
    real = Path.replace

    def die(*given):
        if crash == "after the commit" and given[0].name != "unreleased-sanitized.parquet":
            return real(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(CRASHES[crash], die)
    with pytest.raises(KeyboardInterrupt):
        _run(shared, crash)
    monkeypatch.undo()
    assert not (shared.folder / crash / "sanitized.parquet").exists()
    other_parts = {"resources.parts": 3} if crash == "before the commit" else {}  # when all blocks are written
    assert _bytes(_run(shared, crash, **other_parts)) == _bytes(finished)
    assert charges_of(shared, crash) == 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_is_killed_is_resumed_by_another_process(shared, finished):
    words = ["run", str(shared.recipe), "--out", str(shared.folder / "killed")]
    words += ["-o", f"privacy.ledger={ledger_of(shared, 'killed')}", "-o", "evaluation.attacked=0"]
    write = "lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    patch = f"from rayprivacy.methods.santext import method\nmethod.write_release = {write}\n"
    assert fork_command([*words, *joining()], shared.folder, patch).wait(timeout=300) == -signal.SIGKILL
    assert main([*words, "--resume"]) == 0
    assert _bytes(Result(shared.folder / "killed")) == _bytes(finished)
    assert charges_of(shared, "killed") == 1


def test_another_epsilon_is_another_charge_and_a_full_account_refuses_it(bench):
    more = {"privacy.epsilon": rp.plan(bench.load()).epsilon * 1.5, "privacy.ledger": ledger_of(bench, "first")}
    _run(bench, "first", **more)
    with pytest.raises(rp.BudgetRefusedError):
        bench.run("second", {**more, "sanitize.keep": 0.45})
    options = [word for key, value in (more | {"sanitize.keep": 0.4}).items() for word in ("-o", f"{key}={value}")]
    assert main(["run", str(bench.recipe), "--out", str(bench.folder / "third"), *options]) == 3
    assert charges_of(bench, "first") == 1


@pytest.mark.parametrize(("mechanism", "least"), [("santext", 0.97), ("randomized_response", 0.9999)])
def test_without_keep_and_epsilon_the_budget_decides(bench, mechanism, least):
    asked = {"sanitize.keep": None, "sanitize.plus": None, "sanitize.mechanism": mechanism, "privacy.epsilon": 800.0}
    assert least * 800 <= rp.plan(bench.load(asked)).epsilon <= 800


def test_rare_words_leave_no_mark(bench):
    _change(bench, "said", [f"{MARK}{at} write to {MARK}@mail.com" for at in range(USERS * 4)])
    result = bench.run(overrides={"evaluation.attacked": 0})
    for path in result.path.rglob("*"):
        if path.is_file() and "private" not in path.relative_to(result.path).parts:
            assert MARK.encode() not in path.read_bytes(), path
    assert all(MARK not in row["text"] and "@example.com" in row["text"] for row in _rows(result))


def test_labels_are_copied_or_randomised_for_a_charge(bench):
    _change(bench, "mood", ["glad", "sad"])
    copied = _run(bench, "copied", **{"corpus.labels": ["mood"]})
    assert sum(row["mood"] == "glad" for row in _rows(copied)) == USERS * 2
    assert any("Labels (mood) are released as they are." in each for each in copied.certificate.assumptions)
    kind = {"kind": "randomize", "epsilon": 0.01, "values": {"mood": ["glad", "sad", "calm"]}}
    randomised = _run(bench, "randomised", **{"corpus.labels": ["mood"], "sanitize.labels": kind})
    assert {row["mood"] for row in _rows(randomised)} == {"glad", "sad", "calm"}
    more = randomised.certificate.spent_diagnostic.epsilon - copied.certificate.spent_diagnostic.epsilon
    assert more == pytest.approx(4 * 0.01)


def test_a_file_without_users_keeps_equal_rows_apart(bench):
    alone = {"corpus.user": None, "corpus.max_records_per_user": None, "privacy.unit": "record"}
    _change(bench, "said", ["the same text of the people"])
    rows = _rows(_run(bench, "alone", **alone))
    assert len(rows) == USERS * 4
    assert len({row["text"] for row in rows}) > USERS * 2
    assert rp.plan(bench.load(alone)).epsilon < rp.plan(bench.load()).epsilon / 3.9


def test_the_short_form_sanitises_one_file(bench, capsys):
    source, out = bench.folder / "talk.parquet", bench.folder / "out.parquet"
    options = {"--text": "said", "--user": "who", "--max-records": "4", "--max-tokens": "8", "--words": "300"}
    options |= {"--ledger": f"sqlite:///{bench.folder}/l.db", "--key": str(bench.folder / "k")}
    words = ["sanitize", str(source), str(out), *chain(*options.items())]
    before, over = source.read_bytes(), [*words[:2], str(source), *words[3:]]
    for wrong, says in (
        (words, "give --epsilon"),
        ([*over, "--keep", "0.3"], "over the source: name another file"),
        ([*words, "--epsilon", "0"], "--epsilon is 0"),
    ):
        assert main(wrong) == 2
        assert says in capsys.readouterr().err
    assert source.read_bytes() == before
    assert main([*words, "--keep", "0.3"]) == 0
    assert "Epsilon of a document" in capsys.readouterr().out
    assert pq.read_table(out).column_names == ["document", "said"]
    assert len(pq.read_table(out)) == USERS * 4
    run = out.with_name("out.parquet.run")
    assert (run / "certificate.md").is_file()
    assert rp.load_recipe(run / "recipe.yaml").privacy.epsilon > 100


def test_a_kept_bound_of_another_table_is_none(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rp.plan(bench.load())
    (path,) = (path for path in (tmp_path / "cache").rglob("noise/*") if "worst" in path.read_text())
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"worst": [values["worst"][0] / 2, *values["worst"][1:]]}))
    with pytest.raises(rp.ConfigError, match=r"the bound of a token is .* was kept"):
        bench.run()
    assert bench.charges() == []


def test_a_public_model_learns_to_read_sanitised_text_for_nothing(shared, finished, public_sentences, monkeypatch):
    monkeypatch.setattr("rayprivacy.methods.santext.pretraining.READER_BATCH", 8)
    monkeypatch.setattr("rayprivacy.methods.santext.pretraining.LEARNING_RATE", 1e-2)
    (shared.folder / "public.txt").write_text("\n".join(public_sentences * 6))
    block = {"text": str(shared.folder / "public.txt"), "steps": 60}
    more = {"pretraining": block, "sanitize.keep": 0.9, "privacy.epsilon": 9000.0, "evaluation.attacked": 0}
    result = _run(shared, "pretrained", measured=True, **more)
    figures = result.metrics["synthetic"]["pretraining"]
    assert figures["loss_after"] < figures["loss_before"] - 0.3
    assert result.model().config.num_hidden_layers == 2
    assert Path(rp.report(result.path)).is_file()
    assert (result.path / "model" / "README.md").is_file()
    assert charges_of(shared, "pretrained") == 1
    assert shared.load({"pretraining": block}).release_id == shared.load().release_id
    saved = (result.path / "model" / "model.safetensors").stat().st_mtime_ns
    _run(shared, "pretrained", **more)
    assert (result.path / "model" / "model.safetensors").stat().st_mtime_ns == saved
    with pytest.raises(rp.ConfigError, match=r"pretraining\.text is .*: give a Parquet file"):
        _run(shared, "none", **more | {"pretraining": {"text": str(shared.folder / "none.txt")}})


# One word against another, in rows of (user, mood, text, the same with other words).
ROWS = [
    ("ann", "glad", "the people was good", "the people was good"),
    ("ann", "glad", "the people was bad", "the people was good"),  # two documents become equal
    ("ann", None, "good " + "people " * 12, "A" * 1990 + " people" * 12),  # a pasted key, say
    ("ann", "None", "the end", "the \x1c"),
    ("ann", None, "the end", "the end"),
    ("ann", None, " ", "\ue000"),
    ("bob", "sad", "null", "None"),
    ("bob", "sad", "good", "\u200b"),
    ("bob", "sad", "the city", "the \U0001f642"),
    ("bob", None, "caf\u00e9 city", "cafe\u0301 cafe\u0301"),
    ("bob", None, "", "\u3000"),
    ("bob", "None", "NaN 7 true", "nan \u0667 was"),
]
# Each is one word wherever it stands, so that words of the released text can be counted.
VOCABULARY = "the people was good bad end city null none true home bread soup tea".split()  # noqa: SIM905
LENGTHS = [4, 4, 13, 2, 2, 0, 1, 1, 2, 2, 0, 3]


def _words(text):
    return len(split(tidy(text))[0])


def _shape(result):
    """Everything that leaves, but for which words were drawn and the head of the ledger, which knows their digest."""
    rows = pq.read_table(result.path / "sanitized.parquet")
    certificate = json.loads((result.path / "certificate.json").read_text())
    return {
        "columns": rows.schema,
        **{name: rows[name].to_pylist() for name in ("document", "mood")},
        "words": [_words(text) for text in rows["text"].to_pylist()],
        "markdown": (result.path / "certificate.md").read_text().replace(certificate.pop("ledger_head"), ""),
        "certificate": certificate,
        "lengths": result.metrics["synthetic"]["words"]["histogram"]["counts"],
        "files": sorted(path.name for path in result.path.iterdir()),
    }


@pytest.mark.parametrize("unit", ["user", "record"])
def test_neighbours_leave_files_of_one_shape(bench, unit, monkeypatch):
    """The coins of two corpora have nothing to do with each other; here both have those of one."""
    assert [_words(row[2]) for row in ROWS] == [_words(row[3]) for row in ROWS] == LENGTHS
    monkeypatch.setattr(ShardManifest, "corpus_digest", lambda *_: "d" * 64)
    np.savez(bench.folder / "plain.npz", words=VOCABULARY, vectors=np.eye(len(VOCABULARY)))
    plain = {"vectors_file": str(bench.folder / "plain.npz"), "words": len(VOCABULARY), "entities": []}
    more = {"sanitize": {"keep": 0.5, "max_tokens": 6, **plain}, "corpus.labels": ["mood"], "evaluation.attacked": 0}
    more |= {"privacy.unit": unit, "corpus.max_records_per_user": None if unit == "record" else 4}
    found = []
    for parts, column in enumerate((2, 3), 1):
        rows = [{"who": row[0], "mood": row[1], "said": row[column]} for row in ROWS]
        pq.write_table(pa.Table.from_pylist(rows), bench.folder / "talk.parquet")
        found.append(_shape(_run(bench, f"{parts}", measured=True, **more, **{"resources.parts": parts})))
    assert found[0] == found[1]
    if unit == "record":
        assert sorted(found[0]["words"]) == sorted(min(length, 6) for length in LENGTHS)
        assert len(set(found[0]["document"])) == len(ROWS)
    else:
        assert len(found[0]["words"]) == 8
