"""The comparison of synthetic with private text inside a run: what it reads, what it leaves, and when it is refused."""

import json
import stat
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from small_jobs import Job, small_privacy
from typer.testing import CliRunner

import rayprivacy as rp
from rayprivacy.cli import app
from rayprivacy.core.errors import ConfigError, KeyFileError
from rayprivacy.core.keys import Key
from rayprivacy.corpus.layout import HOLDOUT, Layout
from rayprivacy.corpus.manifest import ShardManifest, write_part
from rayprivacy.corpus.users import Dropped
from rayprivacy.evaluation.evaluate import NO_HOLDOUT
from rayprivacy.evaluation.texts import sample
from rayprivacy.generation.codes import Codes
from rayprivacy.methods.generator.recipe import CARD
from rayprivacy.methods.registry import load_recipe, method_of, parse_recipe
from rayprivacy.reporting.inputs import Evaluation, read_model
from rayprivacy.runs.directory import Run
from rayprivacy.runs.drive import drive
from rayprivacy.runs.measure import NO_CLASSIFIER, SKIPPED, compare_with_private, drawn_rows
from rayprivacy.runs.plan import COMPARISON

ROOT = Path(__file__).parents[2]
WORDS = {topic: [f"{topic}{letter}ing" for letter in "abcdefghij"] for topic in ("sun", "soup", "rain")}
LISTED = ("sun", "soup")  # topics that the recipe lists
FILES = ("evaluation.json", "evaluation.md")
Row = tuple[str, str, str]  # user, text, topic


def rows(seed, users):
    draw, topics = np.random.default_rng(seed), list(WORDS)
    asked = [(user, topics[(user + number) % 3]) for user in range(users) for number in range(3)]
    return [(f"person-{seed}-{user}", " ".join(draw.choice(WORDS[topic], 9)), topic) for user, topic in asked]


PRIVATE, HELD_OUT = rows(1, 40), rows(2, 15)


class Finished:
    """A run of the generator as it is before the comparison: shards and synthetic text."""

    def __init__(self, root, base, backbone):
        labels = {"corpus": {"labels": ["topic"]}, "codes": {"values": {"topic": list(LISTED)}}}
        rest = {"privacy": small_privacy(root), "model": {"base": str(base)}, "evaluation": {"compare": 50}}
        recipe: Any = parse_recipe({"method": "generator", **labels, **rest})
        self.told = Console(record=True, file=StringIO(), width=200)
        self.run: Run[Any] = Run.open(root / "run", recipe, resume=False, console=self.told)
        self.root, self._backbone = self.run.root, backbone
        self.private(PRIVATE, HELD_OUT)
        self.synthetic(rows(3, 25))

    def private(self, training, heldout):
        """Shards of three parts, the second of them empty."""
        out, middle, entries = self.run.private("shards"), len(training) // 3, {}
        out.mkdir(exist_ok=True)
        for part, own in {HOLDOUT: heldout, 0: training[:middle], 1: [], 2: training[middle:]}.items():
            users, texts, topics = ([row[at] for row in own] for at in range(3))
            schema = Layout(self.run.recipe.corpus, 3, 1).schema
            table = pa.table([[part] * len(own), users, [0] * len(own), texts, topics], schema=schema)
            entries[part] = write_part(table, part, Key(b"7" * 32), out)
        kept = tuple(entries[part] for part in range(3))
        ShardManifest("", 3, 1, 100, 0.1, kept, entries[HOLDOUT], Dropped()).write(out)

    def synthetic(self, texts):
        """Synthetic text, whose labels are control codes."""
        topics = [topic if topic in LISTED else "other" for _, _, topic in texts]
        table = pa.table({"text": [text for _, text, _ in texts], "topic": topics})
        pq.write_table(table, self.root / "synthetic.parquet")

    def compare(self):
        """Compare; returns what synthetic text has of each figure."""
        recipe = self.run.recipe
        compare_with_private(self.run, CARD, self._backbone, Codes(recipe.codes, recipe.corpus.labels))
        return {row["name"]: row["synthetic"] for row in self.found["rows"]}

    @property
    def found(self):
        return dict(json.loads(path.read_text())) if (path := self.root / FILES[0]).exists() else {"rows": []}


@pytest.fixture
def finished(tmp_path, tiny_base, tiny_backbone, one_thread):
    return Finished(tmp_path, tiny_base, tiny_backbone)


def said_of_it(root):
    lines = map(json.loads, (root / "run.log").read_text().splitlines())
    return [line for line in lines if line["stage"] == COMPARISON]


def assert_internal(root, texts):
    """The files are for their owner, are marked, and hold no text; the log has no figure."""
    for name in FILES:
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o600, name
        content = (root / name).read_bytes()
        assert not [text for text in texts if text.encode() in content], name
    found = json.loads((root / "evaluation.json").read_text())
    assert found["releasable"] is False
    assert len({row["name"] for row in found["rows"]}) > 20
    assert [line["event"] for line in said_of_it(root)] == ["start", "done"]
    assert {key for line in said_of_it(root) for key in line} == {"time", "stage", "event", "seconds"}


def test_samples_of_its_own_texts_are_compared_and_what_was_killed_is_repeated(finished):
    figures, found = finished.compare(), finished.found
    assert_internal(finished.root, {told for user, text, _ in PRIVATE + HELD_OUT for told in (user, text)})
    sizes = {name: (side["texts"], side["users_named"]) for name, side in found["inputs"].items()}
    assert sizes == {"real": (50, True), "synthetic": (50, False), "holdout": (45, True)}
    assert found["settings"]["embeddings"] == ["minilm-l6", "tfidf"]
    assert found["settings"]["base"] == finished.run.recipe.model.base
    assert {row["group"] for row in found["rows"]} == {"fidelity", "words", "memorisation", "downstream"}
    # A third of the texts is about rain, which is on no list: synthetic text can only call it "other".
    references = {row["name"]: row["reference"] for row in found["rows"]}
    assert figures["accuracy"] == references["macro_f1"] == 1
    shown = finished.told.export_text()
    assert shown.split()[:4] == COMPARISON.split()
    assert len(shown.split()) == 6, "more than the stage and its seconds was printed"
    assert not [name for name in figures if name in shown]
    assert read_model(finished.root / "evaluation.json", Evaluation).rows
    before = [(finished.root / name).read_bytes() for name in FILES]
    (finished.root / "evaluation.md").unlink()
    finished.compare()
    assert [(finished.root / name).read_bytes() for name in FILES] == before


def test_copies_of_training_texts_are_seen_and_copies_of_others_are_not(finished):
    finished.private(PRIVATE[:49], HELD_OUT)  # all of them are drawn
    for copied, share in ((PRIVATE[:49], 1), (HELD_OUT, 0)):
        finished.synthetic(copied)
        assert finished.compare()["copied_texts"] == share


@pytest.mark.parametrize("short", ["training", "synthetic"])
def test_too_few_texts_leave_it_out_and_the_run_goes_on(finished, short):
    for name in FILES:
        (finished.root / name).write_text("of a corpus that was larger")
    if short == "training":
        finished.private(PRIVATE[:19], HELD_OUT)
    else:
        finished.synthetic([*PRIVATE[:19], *[("", "  ", "sun")] * 30])
    finished.compare()
    assert not [name for name in FILES if (finished.root / name).exists()]
    assert [line["event"] for line in said_of_it(finished.root)] == ["start", SKIPPED, "done"]
    assert not any(character.isdigit() for character in SKIPPED)


def test_too_few_held_out_texts_and_labels_with_nothing_to_learn_are_left_out(finished):
    finished.private(PRIVATE, HELD_OUT[:19])
    finished.synthetic([(user, text, "sun") for user, text, _ in PRIVATE])
    figures = finished.compare()
    assert "holdout" not in finished.found["inputs"]
    assert {NO_HOLDOUT, NO_CLASSIFIER} <= set(finished.found["notes"])
    assert "accuracy" not in figures
    assert "precision" in figures


def test_errors_about_private_rows_are_withheld(finished, monkeypatch):
    def quoting(*_, **__):
        raise ValueError(PRIVATE[0][1])

    monkeypatch.setattr("rayprivacy.runs.measure.texts_of", quoting)
    with pytest.raises(Exception, match="the comparison with private text stopped with ValueError") as caught:
        finished.compare()
    assert PRIVATE[0][1] not in str(caught.value)
    assert caught.value.__context__ is None


def test_rows_are_drawn_over_all_files(tmp_path):
    files, first = [tmp_path / f"{number}.parquet" for number in range(4)], 0
    for path, size in zip(files, (3, 0, 70_000, 500), strict=True):  # the third file is read in several batches
        places = range(first, first + size)
        texts = pa.array([f"text {place}" for place in places], pa.large_string())
        pq.write_table(pa.table({"place": pa.array(places, pa.int64()), "text": texts}), path)
        first += size
    for most in (10, 2000):
        found = drawn_rows(files, most, ["text", "place"]).to_pydict()
        assert found["place"] == sample(first, most, 0).tolist()
        assert found["text"] == [f"text {place}" for place in found["place"]]
    assert [len(drawn_rows([path], 10, ["text"])) for path in files] == [3, 0, 10, 10]


@pytest.fixture
def recipe(tmp_path):
    """What has to be refused before the ledger is touched."""
    path = tmp_path / "recipe.yaml"
    privacy = f"{{ledger: 'sqlite:///{tmp_path}/ledger.db', key: '{tmp_path}/key'}}"
    path.write_text(f"privacy: {privacy}\nevaluation: {{compare: 500}}\n")
    return path


@pytest.mark.parametrize(("method", "missing"), [("seqpate", "sklearn"), ("generator", "sacrebleu")])
def test_it_needs_the_extra(recipe, monkeypatch, method, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    words = [str(recipe), "-o", f"method={method}"]
    for verb, *more in (("plan",), ("run", "--out", str(recipe.parent / "out"))):
        done = CliRunner().invoke(app, [verb, *words, *more])
        assert isinstance(done.exception, ConfigError)
        assert str(done.exception) == f"evaluation.compare needs {missing}: pip install 'rayprivacy[eval]'."
    assert [path.name for path in recipe.parent.iterdir()] == ["recipe.yaml"], "there is no account"
    assert CliRunner().invoke(app, ["plan", *words, "-o", "evaluation.compare=0"]).exit_code == 0


def test_a_run_of_few_texts_is_refused_before_there_is_an_account(recipe):
    with pytest.raises(ConfigError, match=r"texts is 19, and evaluation\.compare needs at least 20: raise it, or set"):
        rp.run(load_recipe(recipe, ["method=generator", "generation.texts=19"]), recipe.parent / "run")
    assert not (recipe.parent / "ledger.db").exists()


@pytest.mark.usefixtures("local_ray")  # a run would start a Ray of its own
def test_a_search_is_not_asked_for_what_it_does_not_measure(recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    # The ledger's key is not there: what a run notices next.
    settings = load_recipe(recipe, ["method=generator", f"privacy.ledger_key={recipe.parent}/nothing"])
    for measured, kind in ((True, ConfigError), (False, KeyFileError)):
        with pytest.raises(kind):
            drive(method_of(settings), settings, recipe.parent / f"run-{measured}", measured=measured)


@pytest.mark.parametrize("method", ["seqpate", "generator"])
def test_it_is_in_the_plan_and_not_in_the_release_id(recipe, method):
    with_it, without = (load_recipe(recipe, [f"method={method}", f"evaluation.compare={n}"]) for n in (40, 0))
    assert with_it.release_id == without.release_id
    stages = [list(rp.plan(each).rows()) for each in (with_it, without)]
    more = ("comparison (internal)", "40 private texts of each side", "not released")
    assert [stage for stage in stages[0] if stage not in stages[1]] == [more]
    assert load_recipe(ROOT / "jobs" / method / "chat.yaml").evaluation.compare >= 400, "the quickstart compares"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["job", "generator"])
@pytest.mark.exhaustive
def test_a_whole_run_leaves_its_comparison_and_tells_nobody(request, which):
    job: Job = request.getfixturevalue(which)
    options = ["evaluation.compare=40", "generation.texts=60", "corpus.holdout=0.3"]
    if which == "generator":
        options.append("codes.histogram=false")  # noisy shares of so few users may leave a single topic
    done = job.run("out", "--public", *(part for option in options for part in ("-o", option)))
    assert done.returncode == 0, done.stderr
    out, private = job.folder / "out", pq.read_table(job.folder / "talk.parquet")
    assert_internal(out, {*private["said"].to_pylist(), *(f'"{user}"' for user in private["who"].to_pylist())})
    found = json.loads((out / "evaluation.json").read_text())
    assert found["inputs"]["real"]["texts"] == 40
    rows = {row["name"]: row["synthetic"] for row in found["rows"] if row["synthetic"] is not None}
    assert ("accuracy" in rows) == (which == "generator")
    figures = map("{:.5g}".format, rows.values())
    secret = [name for name in rows if "_" in name] + [each for each in figures if len(each) > 5]
    assert len(secret) > 20
    for told in (done.stdout + done.stderr, (out / "certificate.json").read_text()):
        assert not [each for each in secret if each in told]
    assert 'id="evaluation"' in (out / "report.html").read_text()
    assert job.call("report", str(out), "--public").returncode == 0
    assert 'id="evaluation"' not in (out / "report-public.html").read_text()
