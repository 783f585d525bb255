"""The comparison of synthetic with private text inside a run: what it reads, what it leaves, and when it is refused."""

import json
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
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
from rayprivacy.models.backbone import Backbone
from rayprivacy.reporting.inputs import Evaluation, read_model
from rayprivacy.runs.directory import Run
from rayprivacy.runs.drive import drive
from rayprivacy.runs.measure import NO_CLASSIFIER, SKIPPED, STAGE, compare_with_private, drawn_rows

ROOT = Path(__file__).parents[2]
WORDS = {
    "sun": "morning light warm beach walk bright summer garden water stone".split(),  # noqa: SIM905
    "soup": "kitchen bread spoon onion pepper dinner table hungry salt plate".split(),  # noqa: SIM905
    "rain": "umbrella cloud puddle thunder grey window storm coat wind night".split(),  # noqa: SIM905
}
FILES = ("evaluation.json", "evaluation.md")
Row = tuple[str, str, str | None]  # user, text, topic


def rows(seed: int, users: int) -> list[Row]:
    """Three texts of each user, about three topics, of which the recipe lists two."""
    draw, about = np.random.default_rng(seed), list(WORDS)
    asked = [(user, about[(user + number) % 3]) for user in range(users) for number in range(3)]
    return [(f"person-{seed}-{user}", " ".join(draw.choice(WORDS[topic], 9)), topic) for user, topic in asked]


PRIVATE, HELD_OUT = rows(1, 40), rows(2, 15)


class Finished:
    """A run of the generator as it is before the comparison: shards and synthetic text."""

    def __init__(self, root: Path, base: Path, backbone: Backbone, compare: int = 50) -> None:
        settings = {
            "method": "generator",
            "corpus": {"source": "talk.parquet", "labels": ["topic"]},
            "privacy": {"key": str(root / "secret.key"), "ledger": f"sqlite:///{root}/ledger.db"},
            "codes": {"values": {"topic": ["sun", "soup"]}},
            "model": {"base": str(base), "dtype": "float32"},
            "evaluation": {"compare": compare},
        }
        self.told = Console(record=True, file=(root / "told").open("w"), width=200)
        self.recipe: Any = parse_recipe(settings)
        self.run = Run.open(root / "run", self.recipe, resume=False, console=self.told)
        self.root, self._backbone = self.run.root, backbone
        self.private(PRIVATE, HELD_OUT)
        self.synthetic([(text, topic) for _, text, topic in rows(3, 25)])

    def private(self, training: list[Row], heldout: list[Row]) -> None:
        """Shards of three parts, the second of them empty."""
        out, key = self.run.private("shards"), Key(b"7" * 32)
        out.mkdir(exist_ok=True)
        schema = Layout(self.recipe.corpus, 3, 1).schema
        middle = len(training) // 3
        parts = {HOLDOUT: heldout, 0: training[:middle], 1: [], 2: training[middle:]}
        entries = {}
        for part, own in parts.items():
            columns = [[part] * len(own), [user for user, _, _ in own], [0] * len(own), [text for _, text, _ in own]]
            table = pa.table([*columns, [topic for _, _, topic in own]], schema=schema)
            entries[part] = write_part(table, part, key, out)
        dropped, kept = Dropped(), tuple(entries[part] for part in range(3))
        ShardManifest("", 3, 1, 100, 0.1, kept, entries[HOLDOUT], dropped).write(out)

    def synthetic(self, texts: list[tuple[str, str | None]]) -> None:
        """Synthetic text, whose labels are control codes."""
        topics = [topic if topic in ("sun", "soup") else "other" for _, topic in texts]
        table = pa.table({"text": [text for text, _ in texts], "topic": topics})
        pq.write_table(table, self.root / "synthetic.parquet")

    def compare(self) -> None:
        compare_with_private(self.run, CARD, self._backbone, Codes(self.recipe.codes, self.recipe.corpus.labels))

    @property
    def found(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "evaluation.json").read_text()))

    @property
    def rows(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.found["rows"]}


@pytest.fixture
def finished(tmp_path: Path, tiny_base: Path, tiny_backbone: Backbone, one_thread: None) -> Finished:
    return Finished(tmp_path, tiny_base, tiny_backbone)


def assert_internal(root: Path, texts: list[str]) -> None:
    """The files are for their owner, are marked, and hold no text."""
    for name in FILES:
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o600, name
        content = (root / name).read_bytes()
        assert not [text for text in texts if text.encode() in content], name
    found = json.loads((root / "evaluation.json").read_text())
    assert found["releasable"] is False
    assert len({row["name"] for row in found["rows"]}) > 20


def said_of_it(root: Path) -> list[dict[str, Any]]:
    """The lines of a log about the comparison."""
    lines = [json.loads(line) for line in (root / "run.log").read_text().splitlines()]
    return [line for line in lines if line["stage"] == STAGE]


def assert_log_has_no_figure(root: Path) -> None:
    own = said_of_it(root)
    assert [line["event"] for line in own] == ["start", "done"]
    assert {key for line in own for key in line} == {"time", "stage", "event", "seconds"}


def test_a_run_is_compared_with_samples_of_its_own_texts_and_a_killed_comparison_is_repeated(
    finished: Finished, tiny_base: Path
) -> None:
    finished.compare()
    assert_internal(finished.root, [told for user, text, _ in PRIVATE + HELD_OUT for told in (user, text)])
    assert_log_has_no_figure(finished.root)
    found = finished.found
    sizes = {name: (side["texts"], side["users_named"]) for name, side in found["inputs"].items()}
    assert sizes == {"real": (50, True), "synthetic": (50, False), "holdout": (45, True)}
    assert found["settings"]["embeddings"] == ["minilm-l6", "tfidf"]
    assert found["settings"]["base"] == str(tiny_base)
    assert {row["group"] for row in found["rows"]} == {"fidelity", "words", "memorisation", "downstream"}
    # A third of the texts is about rain, which is on no list: synthetic text can only call it "other".
    assert finished.rows["accuracy"]["synthetic"] == finished.rows["macro_f1"]["reference"] == 1
    shown = finished.told.export_text()
    assert shown.split()[:4] == STAGE.split()
    assert len(shown.split()) == 6, "more than the stage and its seconds was printed"
    assert not [name for name in finished.rows if name in shown]
    assert read_model(finished.root / "evaluation.json", Evaluation).rows
    before = [(finished.root / name).read_bytes() for name in FILES]
    (finished.root / "evaluation.md").unlink()
    finished.compare()
    assert [(finished.root / name).read_bytes() for name in FILES] == before


def test_copies_of_training_texts_are_seen_and_copies_of_others_are_not(finished: Finished) -> None:
    finished.private(PRIVATE[:49], HELD_OUT)  # all of them are drawn
    finished.synthetic([(text, topic) for _, text, topic in PRIVATE[:49]])
    finished.compare()
    assert finished.rows["copied_texts"]["synthetic"] == 1
    finished.synthetic([(text, topic) for _, text, topic in HELD_OUT])
    finished.compare()
    assert finished.rows["copied_texts"]["synthetic"] == 0


@pytest.mark.parametrize("short", ["training", "synthetic"])
def test_too_few_texts_leave_it_out_and_the_run_goes_on(finished: Finished, short: str) -> None:
    for name in FILES:
        (finished.root / name).write_text("of a corpus that was larger")
    if short == "training":
        finished.private(PRIVATE[:19], HELD_OUT)
    else:
        finished.synthetic([*((text, topic) for _, text, topic in PRIVATE[:19]), *[("  ", "sun")] * 30])
    finished.compare()
    assert not [name for name in FILES if (finished.root / name).exists()]
    assert [line["event"] for line in said_of_it(finished.root)] == ["start", SKIPPED, "done"]
    assert not any(character.isdigit() for character in SKIPPED)


def test_too_few_held_out_texts_and_labels_with_nothing_to_learn_are_left_out(finished: Finished) -> None:
    finished.private(PRIVATE, HELD_OUT[:19])
    finished.synthetic([(text, "sun") for _, text, _ in PRIVATE])
    finished.compare()
    assert "holdout" not in finished.found["inputs"]
    assert {NO_HOLDOUT, NO_CLASSIFIER} <= set(finished.found["notes"])
    assert "accuracy" not in finished.rows
    assert "precision" in finished.rows
    assert_log_has_no_figure(finished.root)


def test_nothing_happens_unless_asked_for(tmp_path: Path, tiny_base: Path, tiny_backbone: Backbone) -> None:
    finished = Finished(tmp_path, tiny_base, tiny_backbone, compare=0)
    finished.compare()
    assert not (finished.root / "evaluation.json").exists()
    assert not (finished.root / "run.log").exists()


def test_errors_about_private_rows_are_withheld(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    def quoting(*_: Any, **__: Any) -> None:
        raise ValueError(PRIVATE[0][1])

    monkeypatch.setattr("rayprivacy.runs.measure.texts_of", quoting)
    with pytest.raises(Exception, match="the comparison with private text stopped with ValueError") as caught:
        finished.compare()
    assert PRIVATE[0][1] not in str(caught.value)
    assert caught.value.__context__ is None


def test_rows_are_drawn_over_all_files(tmp_path: Path) -> None:
    sizes, files, first = (3, 0, 70_000, 500), [], 0  # the third file is read in several batches
    for number, size in enumerate(sizes):
        table = pa.table({"place": range(first, first + size), "text": [f"text {first + row}" for row in range(size)]})
        table = table.cast(pa.schema({"place": pa.int64(), "text": pa.large_string()}))
        pq.write_table(table, tmp_path / f"{number}.parquet")
        files.append(tmp_path / f"{number}.parquet")
        first += size
    for most in (10, 2000):
        found = drawn_rows(files, most, ["text", "place"])
        assert found["place"].to_pylist() == sample(first, most, 0).tolist()
        assert found["text"].to_pylist() == [f"text {place}" for place in found["place"].to_pylist()]
    assert drawn_rows(files[:1], 10, ["text"])["text"].to_pylist() == ["text 0", "text 1", "text 2"]
    assert len(drawn_rows(files[1:2], 10, ["text"])) == 0


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """What has to be refused before the ledger is touched."""
    path = tmp_path / "recipe.yaml"
    lines = [f"privacy: {{ledger: 'sqlite:///{tmp_path}/ledger.db', key: '{tmp_path}/key'}}"]
    path.write_text("\n".join([*lines, "evaluation: {compare: 500}"]))
    return path


@pytest.mark.parametrize(
    ("verb", "method", "missing"), [("plan", "seqpate", "sklearn"), ("run", "generator", "sacrebleu")]
)
def test_without_the_extra_it_is_refused_before_there_is_an_account(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, verb: str, method: str, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    words = [str(recipe), "-o", f"method={method}"]
    done = CliRunner().invoke(app, [verb, *words, *(["--out", str(recipe.parent / "out")] if verb == "run" else [])])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"evaluation.compare needs {missing}: pip install 'rayprivacy[eval]'."
    assert [path.name for path in recipe.parent.iterdir()] == ["recipe.yaml"]
    assert CliRunner().invoke(app, ["plan", *words, "-o", "evaluation.compare=0"]).exit_code == 0


def test_a_run_of_few_texts_is_refused_before_there_is_an_account(recipe: Path) -> None:
    settings = load_recipe(recipe, ["method=generator", "generation.texts=19"])
    says = "generation.texts is 19, and evaluation.compare needs at least 20: raise it, or set evaluation.compare to 0"
    for step in (rp.plan, partial(rp.run, out=recipe.parent / "run")):
        with pytest.raises(ConfigError, match=says):
            step(settings)
    assert not (recipe.parent / "ledger.db").exists()


def test_a_search_is_not_asked_for_what_it_does_not_measure(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, local_ray: Path
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    # The ledger's key is not there: what a run notices next.
    settings = load_recipe(recipe, ["method=generator", f"privacy.ledger_key={recipe.parent}/nothing"])
    for measured, kind in ((True, ConfigError), (False, KeyFileError)):
        with pytest.raises(kind):
            drive(method_of(settings), settings, recipe.parent / f"run-{measured}", measured=measured)


@pytest.mark.parametrize("method", ["seqpate", "generator"])
def test_it_is_in_the_plan_and_not_in_the_release_id(recipe: Path, method: str) -> None:
    with_it, without = (load_recipe(recipe, [f"method={method}", f"evaluation.compare={n}"]) for n in (40, 0))
    assert with_it.release_id == without.release_id
    stages = [list(rp.plan(each).rows()) for each in (with_it, without)]
    more = ("comparison (internal)", "40 private texts of each side", "not released")
    assert [stage for stage in stages[0] if stage not in stages[1]] == [more]


def test_the_quickstart_compares_and_installs_what_that_needs() -> None:
    for method in ("seqpate", "generator"):
        assert load_recipe(ROOT / "jobs" / method / "chat.yaml").evaluation.compare >= 400
    installed = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-e '.[demo" in line)
    assert "eval" in installed.partition("[")[2].partition("]")[0].split(",")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["seqpate", "generator"])
@pytest.mark.exhaustive
def test_a_whole_run_leaves_its_comparison_and_tells_nobody(request: pytest.FixtureRequest, method: str) -> None:
    job: Any = request.getfixturevalue("job" if method == "seqpate" else "generator")
    options = ["evaluation.compare=40", "generation.texts=60", "corpus.holdout=0.3"]
    if method == "generator":
        options.append("codes.histogram=false")  # noisy shares of so few users may leave a single topic
    done = job.run("out", "--public", *(part for option in options for part in ("-o", option)))
    assert done.returncode == 0, done.stderr
    out = job.folder / "out"
    private = pq.read_table(job.folder / "talk.parquet")
    assert_internal(out, sorted({*private["said"].to_pylist(), *(f'"{user}"' for user in private["who"].to_pylist())}))
    assert_log_has_no_figure(out)
    found = json.loads((out / "evaluation.json").read_text())
    assert found["inputs"]["real"]["texts"] == 40
    rows = {row["name"]: row["synthetic"] for row in found["rows"] if row["synthetic"] is not None}
    assert ("accuracy" in rows) == (method == "generator")
    secret = [name for name in rows if "_" in name] + [
        told for told in map("{:.5g}".format, rows.values()) if len(told) > 5
    ]
    assert len(secret) > 20
    for told in (done.stdout + done.stderr, (out / "certificate.json").read_text()):
        assert not [each for each in secret if each in told]
    page = (out / "report.html").read_text()
    assert 'id="evaluation"' in page
    shared = job.call("report", str(out), "--public")
    assert shared.returncode == 0, shared.stderr
    assert 'id="evaluation"' not in (out / "report-public.html").read_text()
