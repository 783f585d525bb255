"""Two-stage generation as its users run it: a recipe in, two models, text with its trees and one certificate out."""

import json
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dying import dying
from jsonschema import validate
from small_jobs import Job
from small_trees import FUNCTIONS, SCHEMA, small_job, small_recipe, warm, write_requests
from transformers import AutoModelForCausalLM, AutoTokenizer

from rayprivacy.structures.trees import functions, names, parse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The stages have 4 and 6 steps, in chunks of 2. What is saved after six is the second stage's, and not committed yet.
FIRST_STAGE, SECOND_STAGE = "progress 3", "step-00000006"
FILES = ("model/model.safetensors", "model/parses/model.safetensors", "synthetic.parquet")
CHUNK = ["reserve", "start", "commit"]


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny_base, local_ray):
    """A run of which a worker was killed in its first training, and the whole job in its second; then resumed."""
    pytest.importorskip("xgrammar")
    folder = tmp_path_factory.mktemp("two_stage")
    blocks = warm(folder)
    blocks["pretrain"]["steps"] = 80
    job = small_job(folder, tiny_base, **blocks, generation={"free_draws": 1})
    killed = job.killed("out", dying(job=[SECOND_STAGE], worker=[FIRST_STAGE]))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / f"died at {FIRST_STAGE}").exists()
    assert job.kinds() == ["create", *CHUNK * 4, "reserve", "start"]
    finished = job.run("out", "--resume")
    assert finished.returncode == 0, finished.stderr
    return job


@pytest.mark.exhaustive
def test_a_run_that_nobody_killed_ends_in_the_same_bytes_and_charges_nothing(done):
    assert done.run("again").returncode == 0
    assert done.certificate("again") == done.certificate("out")
    for name in FILES:
        assert (done.folder / "again" / name).read_bytes() == (done.folder / "out" / name).read_bytes(), name
    assert done.kinds() == ["create", *CHUNK * 5]


def test_both_stages_are_charged_once_under_one_cap(done):
    before = {name: (done.folder / "out" / name).read_bytes() for name in FILES}
    assert done.run("out", "--resume").returncode == 0
    assert {name: (done.folder / "out" / name).read_bytes() for name in FILES} == before
    assert done.kinds() == ["create", *CHUNK * 5]
    certificate, events = done.certificate("out"), done.certificate("out")["events"]
    assert {(row["kind"], row["q"]) for row in events} == {("poisson-sampled-gaussian", 0.4)}
    assert sum(row["count"] for row in events) == 4 + 6
    assert len({row["sigma_eff"] for row in events}) == 1
    assert (certificate["epsilon"], certificate["composition"]) == (3.0, "rdp")
    assert certificate["spent_diagnostic"]["epsilon"] <= 3.0
    trees, utterances, together = (stage["epsilon"] for stage in certificate["stages"])
    assert trees < utterances < together <= min(3.0, trees + utterances)
    assert any("grammar" in sentence for sentence in certificate["assumptions"])


def test_every_tree_that_is_released_follows_the_grammar(done):
    table, figures = pq.read_table(done.folder / "out" / "synthetic.parquet"), done.metrics("out")["synthetic"]["trees"]
    assert table.column_names == ["text", "parse", "functions"]
    assert 0 < len(table) <= figures["written"] <= 12
    allowed = set((done.folder / "api.txt").read_text().split())
    assert set(FUNCTIONS) < allowed
    for row in table.to_pylist():
        tree = parse(row["parse"])
        assert set(functions(tree)) <= allowed
        assert row["functions"] == " ".join(functions(tree))
    assert figures["free_draws"] >= 12
    assert figures["written"] + figures["left_out"] == 12
    assert figures["written"] - figures["free_draws_accepted"] <= figures["masked_draws"]


def test_both_models_are_there_and_measured(done):
    out, metrics = done.folder / "out", done.metrics("out")
    for folder in (out / "model", out / "model" / "parses"):
        model, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer))
        assert model.generate(**tokenizer("(Yield", return_tensors="pt"), max_new_tokens=2).shape[1] > 2
        assert "differential-privacy" in (folder / "README.md").read_text()
    assert "say (Yield (Today))" in (out / "model" / "README.md").read_text()
    heldout, trees = metrics["heldout"], metrics["trees"]
    assert heldout["releasable"] is trees["releasable"] is False
    for kind in ("perplexity", "perplexity_of_trees", "perplexity_of_utterances"):
        assert set(heldout[kind]) == {"base", "pretrained", "two_stage"}
        assert heldout[kind]["pretrained"] < 0.1 * heldout[kind]["base"], "public pairs teach both kinds of document"
    assert 0.5 < trees["function_recall"] <= 1
    assert 0 <= trees["function_distance"] < 0.5


def test_the_report_shows_how_trees_were_drawn_and_nothing_private_leaves(done):
    out, drawn = done.folder / "out", "How parse trees were drawn"
    inside = ("Words and functions beside held-out text", "Share of each function")
    page = (out / "report.html").read_text()
    assert all(title in page for title in (drawn, *inside))
    assert done.call("report", str(out), "--public").returncode == 0
    public = (out / "report-public.html").read_text()
    assert drawn in public
    assert not any(title in public for title in inside)
    for name in ("run.log", "certificate.json", "certificate.md", "report.html", "recipe.yaml"):
        assert "user-" not in (out / name).read_text(), name
    assert (out / "private").stat().st_mode & 0o077 == 0


def test_an_audit_attacks_both_models_and_flags_nothing(done):
    answer = done.call("audit", str(done.folder / "out"), "--json")
    assert answer.returncode == 0, answer.stderr
    assert not json.loads(answer.stdout)["verdict"]["flagged"]
    assert set(json.loads(answer.stdout)["membership"]) == {"loss", "calibrated"}
    hidden = done.folder / "out" / "model" / "parses"
    hidden.rename(hidden.with_name("elsewhere"))
    assert done.call("audit", str(done.folder / "out"), "--json").returncode != 0  # it reads the second model
    hidden.with_name("elsewhere").rename(hidden)


@pytest.mark.exhaustive
def test_without_warmth_it_is_the_published_method(tmp_path, tiny_base, local_ray):
    job = small_job(tmp_path, tiny_base)
    assert job.run("out").returncode == 0
    figures = job.metrics("out")["synthetic"]["trees"]
    assert (figures["free_draws"], figures.get("masked_draws", 0), figures["written"]) == (12, 0, 12)


SECRET = "my pin"


@pytest.mark.exhaustive
@pytest.mark.parametrize("private", [True, False])
def test_a_secret_needs_privacy_to_stay_inside(tmp_path, tiny_base, local_ray, private):
    """A literal that half of the people have in their trees, and no public tree has."""
    job = small_job(tmp_path, tiny_base, **warm(tmp_path))
    table = pq.read_table(tmp_path / "talk.parquet").to_pylist()
    planted = {"said": f"add {SECRET} today", "lispress": f'(Yield (Create (Event.name_? (?= "{SECRET}"))))'}
    rows = [row | (planted if int(row["who"].split("-")[1]) % 2 else {}) for row in table]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "talk.parquet")
    noise = ("privacy.epsilon=8",) if private else ("privacy.epsilon=1e6", "training.noise_multiplier=0.05")
    more = ("stages.trees.steps=40", "stages.utterances.steps=2", "training.chunk=40", "generation.texts=48")
    rate = ("adapter.kind=full", "training.optimizer.learning_rate=0.003")
    assert job.run("out", *(word for each in (*noise, *more, *rate) for word in ("-o", each))).returncode == 0
    released = pq.read_table(tmp_path / "out" / "synthetic.parquet")["parse"].to_pylist()
    assert len(released) > 10
    assert any(SECRET in tree for tree in released) == (not private)


@pytest.fixture(scope="module")
def requests(tmp_path_factory, tiny_base, local_ray):
    """Requests whose structure is JSON, which a public parser reads off them."""
    pytest.importorskip("xgrammar")
    folder = tmp_path_factory.mktemp("requests")
    write_requests(folder, users=14, turns=2)
    recipe = small_recipe(folder, tiny_base)
    recipe["corpus"] |= {"source": str(folder / "requests.parquet"), "labels": [], "holdout": 0.4}
    rules = {"grammar": "json", "rules": str(folder / "schema.json")}
    recipe["parses"] = {"column": "structure", "max_tokens": 48, **rules}
    pairs = {"source": str(folder / "pairs.parquet"), "text": "said"}
    recipe["parser"] = {**pairs, "steps": 80, "batch": 8, "learning_rate": 0.01}
    recipe["stages"] = {"trees": {"steps": 2}, "utterances": {"steps": 2}}
    job = Job.of(folder, recipe)
    finished = job.run("out")
    assert finished.returncode == 0, finished.stderr
    return job


def _names(trees):
    return {name for tree in trees for name in names(tree, frozenset({"Play", "Stop"})) or ()}


@pytest.mark.exhaustive
def test_every_structure_that_is_released_follows_the_schema(requests):
    rows = pq.read_table(requests.folder / "out" / "synthetic.parquet").to_pylist()
    figures = requests.metrics("out")["synthetic"]["trees"]
    assert len(rows) == figures["written"] > 6
    assert figures["masked_draws"] >= len(rows)
    assert "free_draws" not in figures
    assert figures["pass_rate"] is None
    for row in rows:
        validate(json.loads(row["parse"]), SCHEMA)
        assert row["functions"] == " ".join(names(row["parse"], frozenset({"Play", "Stop"})) or ())


@pytest.mark.exhaustive
def test_private_trees_are_what_the_parser_reads_and_stay_inside(requests):
    out = requests.folder / "out"
    gold = {row["said"]: row["structure"] for row in pq.read_table(requests.folder / "requests.parquet").to_pylist()}
    parts = sorted((out / "private" / "shards").glob("*.parquet"))
    rows = [row for path in parts for row in pq.read_table(path, partitioning=None).to_pylist()]
    assert len(rows) > 15
    assert sum(row["structure"] == gold[row["text"]] for row in rows) > 0.6 * len(rows)
    figures, public = requests.metrics("out"), requests.metrics("out")["synthetic"]["parser"]
    assert public["exact"] > 0.5
    assert public["loss_after"] < public["loss_before"]
    heldout = [row["structure"] for row in rows if row["shard"] == -1]
    assert figures["trees"]["tree_share"] == round(sum(names(tree) is not None for tree in heldout) / len(heldout), 4)
    certificate = requests.certificate("out")
    assert any("one record at a time" in sentence for sentence in certificate["assumptions"])
    assert sum(row["count"] for row in certificate["events"]) == 2 + 2, "the parser is charged for nothing"
    assert not list(out.glob("private/parsing/*"))


@pytest.mark.exhaustive
def test_figures_count_keys_and_intents_of_json(requests):
    trees, out = requests.metrics("out")["trees"], requests.folder / "out"
    assert not trees["releasable"]
    written = _names(pq.read_table(out / "synthetic.parquet")["parse"].to_pylist())
    real = _names(pq.read_table(out / "private" / "shards" / "holdout.parquet")["structure"].to_pylist())
    assert real >= {"intent", "slots"}
    assert trees["function_recall"] == round(len(real & written) / len(real), 4)
    shares = [share for share, _ in trees["function_shares"]]
    assert len(shares) == len(real), "a point for each function of held-out text"
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    assert "Share of each function" in (out / "report.html").read_text()


def test_the_packaged_corpus_has_a_schema(tmp_path, tiny_backbone, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import snips

    from rayprivacy.structures.grammar import read_rules
    from rayprivacy.structures.masks import matcher_of

    tags = {"play the song imagine": "O O O B-track", "stop the film now": "O O B-track I-track"}
    rows = [
        {"split": split, "intent": "PlayMusic", "tokens": text.split(), "bio": bio.split(), "text": text}
        for split in ("train", "valid")
        for text, bio in [*tags.items()] * 5
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "snips_intents_slots.parquet")
    snips.prepare(tmp_path, tmp_path / "out")
    tables = {name: pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in snips.PARTS}
    assert {name: len(table) for name, table in tables.items()} == {"private": 9, "public": 1, "dev": 10}
    assert len({row["request"] for table in tables.values() for row in table}) == 20
    matcher = matcher_of(read_rules(str(snips.SCHEMA), "json", "rules"), tiny_backbone, tiny_backbone.head.shape[0])
    assert all(matcher.accepts(row["structure"]) for table in tables.values() for row in table)
    assert tables["dev"][-1]["structure"] == '{"intent": "PlayMusic", "slots": {"track": "film now"}}'
