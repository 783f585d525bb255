"""What is refused before anything reaches a cluster, and what travels when something does."""

import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray.job_submission import JobStatus
from typer.testing import CliRunner

from rayprivacy.cli import app
from rayprivacy.cluster.job import RECIPE_FILE, run_job
from rayprivacy.cluster.paths import check_out, check_recipe_paths
from rayprivacy.cluster.submit import connect, exit_code, parcel, read_token
from rayprivacy.core.errors import ClusterError, ConfigError, KeyFileError
from rayprivacy.methods.registry import load_recipe, parse_recipe
from rayprivacy.runs.checks import DATASET

ROOT = Path(__file__).parents[3]


def recipe(**blocks):
    base: dict[str, Any] = {"privacy": {"key": "/mnt/key", "ledger": "postgresql://me@db/ledger"}}
    given = {
        name: {**base.get(name, {}), **value} if isinstance(value, dict) else value for name, value in blocks.items()
    }
    return parse_recipe({"method": "seqpate", **base, **given})


@pytest.mark.parametrize(
    ("blocks", "key"),
    [
        ({"corpus": {"source": "data/chats.parquet"}}, "corpus.source"),
        ({"corpus": {"source": "~/chats.parquet"}}, "corpus.source"),
        ({"corpus": {"source": "s3://AKIA:word@bucket/chats"}}, "corpus.source"),
        ({"corpus": {"source": "s3://bucket/chats?secret_key=word"}}, "corpus.source"),
        ({"corpus": {"phrases": "l.txt", "max_shards_per_phrase": 1}, "privacy": {"unit": "phrase"}}, "corpus.phrases"),
        ({"prompts": "openers.txt"}, "prompts"),
        ({"pretrain": {"source": "forum.parquet"}}, "pretrain.source"),
        ({"pretrain": {"source": "s3://bucket/forum?secret_key_2=word"}}, "pretrain.source"),
        ({"privacy": {"key": "runs/key"}}, "privacy.key"),
        ({"privacy": {"ledger_key": "ledger.key"}}, "privacy.ledger_key"),
        ({"privacy": {"ledger": "sqlite:///ledger.db"}}, "privacy.ledger"),
        ({"privacy": {"ledger": "sqlite://"}}, "privacy.ledger"),
        ({"privacy": {"ledger": "postgresql://me@db/ledger?passfile=.pgpass"}}, "privacy.ledger"),
        ({"model": {"base": "./models/mine"}}, "model.base"),
        ({"model": {"base": "weights/mine.gguf"}}, "model.base"),
        ({"resources": {"features": "cache"}}, "resources.features"),
        ({"corpus": {"source": DATASET}}, "a job cannot be handed a dataset"),
    ],
)
def test_a_path_that_the_cluster_would_not_find_is_refused(blocks, key):
    with pytest.raises(ConfigError, match=key) as error:
        check_recipe_paths(recipe(**blocks))
    assert "word" not in str(error.value)


def test_what_the_cluster_finds_is_taken(tmp_path, monkeypatch):
    for source in ("/mnt/chats.parquet", "s3://bucket/chats?region=eu-central-1"):
        check_recipe_paths(recipe(corpus={"source": source}))
        check_recipe_paths(recipe(pretrain={"source": source}))
    check_recipe_paths(recipe(corpus={"source": "iceberg:prod.talk.chats"}), shipped=tmp_path)
    for ledger in ("sqlite:////var/ledger.db", "postgresql://me@db/ledger?passfile=/mnt/pgpass"):
        check_recipe_paths(recipe(privacy={"ledger": ledger}))
    monkeypatch.chdir(tmp_path)
    check_recipe_paths(recipe(model={"base": "org/model"}, prompts="/mnt/openers.txt"))
    (tmp_path / "org" / "model").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"model\.base"):  # a directory here is no hub id there
        check_recipe_paths(recipe(model={"base": "org/model"}))


def test_what_is_private_does_not_lie_in_what_travels(tmp_path, monkeypatch):
    """Whatever it is called: a key that leaves is a guarantee that is gone."""
    monkeypatch.chdir(tmp_path)
    check_recipe_paths(recipe(corpus={"source": "chitchat"}), tmp_path)  # a name, and no file of this folder
    code = tmp_path / "project" / "code"
    code.mkdir(parents=True)
    elsewhere = {"privacy": {"key": str(tmp_path / "key"), "ledger": f"sqlite:///{tmp_path}/book.sqlite"}}
    check_recipe_paths(recipe(**elsewhere), code.parent)
    inside: list[dict[str, Any]] = [
        {"privacy": {"key": str(code / "chat.secret")}},
        {"privacy": {"ledger": f"sqlite:///{code}/book.sqlite"}},
        {"privacy": {"ledger": f"postgresql://me@db/ledger?passfile={code}/pass"}},
        {"corpus": {"source": str(code / "chats.jsonl")}},
        {"resources": {"features": str(code / "cache")}},
    ]
    for blocks in inside:
        with pytest.raises(ConfigError, match="lies in --working-dir and would be sent to every node"):
            check_recipe_paths(recipe(**blocks), code.parent)


@pytest.mark.parametrize("path", ["forum.parquet", "data/forum.parquet", "runs/forum.jsonl", ".env/forum.jsonl"])
def test_what_stays_behind_is_refused_before_it_is_missed(tmp_path, path):
    """Of a working directory no Parquet file travels, say: it may be a corpus."""
    for each in (path, "data/forum.jsonl"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text("hello\n")
    check_recipe_paths(recipe(pretrain={"source": "data/forum.jsonl"}, prompts="data/forum.jsonl"), tmp_path)
    with pytest.raises(ConfigError, match="prompts"):
        check_recipe_paths(recipe(prompts="closers.txt"), tmp_path)
    with pytest.raises(ConfigError, match=r"pretrain.source is .*, a path that is relative"):
        check_recipe_paths(recipe(pretrain={"source": path}), tmp_path)


@pytest.mark.parametrize(
    ("out", "work", "named"), [("runs/x", "/w", "--out"), ("s3://b/x", "w", "--work"), ("s3://k:s@b/x", "/w", "--out")]
)
def test_a_run_directory_that_would_be_lost_is_refused(out, work, named):
    with pytest.raises(ConfigError, match=named):
        check_out(out, work)


@pytest.mark.parametrize("name", ["seqpate", "generator"])
def test_the_recipes_of_the_guide_can_be_submitted(name):
    settings = load_recipe(ROOT / "deploy" / "recipes" / f"{name}.yaml")
    assert settings.method == name
    check_recipe_paths(settings)


def test_the_job_is_the_release_and_joins_the_cluster():
    plain = recipe()
    job = run_job(plain, "/mnt/runs/a b", "/mnt/work")
    assert job.id == plain.release_id
    assert job.entrypoint == f"python -m rayprivacy.cli run {RECIPE_FILE} --out '/mnt/runs/a b' --resume --public"
    assert yaml.safe_load(job.files[RECIPE_FILE])["resources"]["address"] == "auto"
    assert set(job.metadata) == {"method", "account", "release", "version", "out", "fingerprint"}
    assert run_job(plain, "s3://b/x", "/mnt/work").command[2:6] == ("--out", "s3://b/x", "--work", "/mnt/work")


def test_the_fingerprint_tells_work_apart_and_not_its_spread():
    def fingerprint(out="/out", **blocks):
        return run_job(recipe(**blocks), out, "/work").fingerprint

    assert fingerprint() == fingerprint(resources={"actors": 7})
    others = [fingerprint("/other"), fingerprint(generation={"texts": 9}), fingerprint(privacy={"account": "b"})]
    assert len({fingerprint(), *others}) == 4


def test_a_working_directory_travels_without_what_is_private(tmp_path):
    private = ["secret.key", "ledger.db", "ledger.db-wal", "data/chats.parquet", "runs/x/votes", ".env", "mine/skipped"]
    for name in [*private, "rayprivacy/core.py", "README.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".rayignore").write_text("mine/\n")
    with parcel({"a.yaml": "x"}, tmp_path) as package, zipfile.ZipFile(package) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    assert names == {"a.yaml", "rayprivacy/core.py", "README.md", ".rayignore"}
    with parcel({"a.yaml": "x"}) as folder:
        assert [path.name for path in Path(folder).iterdir()] == ["a.yaml"]
    assert not Path(folder).exists()
    with pytest.raises(ConfigError, match="--working-dir"), parcel({}, tmp_path / "none"):
        pass
    ours = (ROOT / ".rayignore").read_text().split()
    assert {"runs/", "*.parquet", "*.jsonl", "*.csv", "*.db", "*.key", "pgpass", "ray-token"} <= set(ours)


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://127.0.0.1:10001", "auto"])
def test_an_address_is_the_url_of_a_dashboard(address):
    with pytest.raises(ConfigError, match="--address"):
        connect(address)


def test_nobody_there_is_one_sentence_and_exit_code_1(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe().model_dump(mode="json")))
    done = CliRunner().invoke(app, ["submit", str(path), "--address", "http://127.0.0.1:9"])
    assert isinstance(done.exception, ClusterError)
    assert done.exception.exit_code == 1
    assert "nothing answers at http://127.0.0.1:9" in str(done.exception)


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (200, ClusterError, "no Ray job server"),
        (404, ClusterError, "404"),
        (500, ClusterError, "no Ray job server"),
        (401, ConfigError, "--token-file"),
        (403, ConfigError, "--token-file"),
    ],
)
def test_who_answers_otherwise_is_one_sentence(status, error, said):
    class Stranger(BaseHTTPRequestHandler):
        """A web server that is no Ray: answers everything with one status."""

        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *args): ...

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(error, match=said) as raised:
            connect(f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("two words", 0o600), ("token", 0o640)])
def test_a_token_file_is_private_and_holds_a_token(tmp_path, text, mode):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="--token-file"):
        read_token(path)
    with pytest.raises(KeyFileError, match="--token-file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize(
    ("status", "by_driver"),
    [
        ("SUCCEEDED", {0: 0}),
        ("FAILED", {1: 1, 2: 2, 3: 3, 137: 1, None: 1}),
        ("STOPPED", {None: 1, 0: 1}),
    ],
)
def test_the_exit_code_is_the_jobs(status, by_driver):
    for driver, code in by_driver.items():
        assert exit_code(SimpleNamespace(status=JobStatus(status), driver_exit_code=driver)) == code
