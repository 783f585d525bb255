"""Places that cannot be read or written: a sentence, exit code 2, and nothing that was there is lost."""

import errno
import os
import resource

import pytest
import yaml

from rayprivacy import cli
from rayprivacy.cli import main
from rayprivacy.core import files
from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.core.private import Seal
from rayprivacy.ledger.store import Ledger
from rayprivacy.models import sources
from rayprivacy.runs.calibration import kept


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file, a ledger and a recipe of a corpus."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("as it was")
    rows = "".join(f"u{row % 30},hello {row} my friend\n" for row in range(120))
    (tmp_path / "chat.csv").write_text(f"user,text\n{rows}")
    recipe = {"method": "santext", "corpus": {"source": "chat.csv"}, "privacy": {"epsilon": 1e6}}
    recipe["sanitize"] = {"words": 300}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["ledger", "create", "--ledger", "sqlite:///there.db", "--account", "a", "--epsilon", "3"]) == 0
    return tmp_path


CREATE = ["ledger", "create", "--account", "b", "--epsilon", "3"]
COMMANDS = [
    *(["run", "recipe.yaml", "--out", place] for place in ("file", "file/out", "/proc/out")),
    ["run", "recipe.yaml", "--out", "o", "-o", "privacy.key=/proc/k"],
    ["run", "recipe.yaml", "--out", "o", "-o", "privacy.key=file/k"],
    ["run", "recipe.yaml", "--out", "o", "-o", "privacy.ledger=sqlite:///file/l.db"],
    *(["plan", place] for place in ("file/recipe.yaml", ".", "none.yaml", "x" * 300)),
    *(["tune", place] for place in ("file/space.yaml", ".")),
    *([*CREATE, "--ledger", f"sqlite:///{place}"] for place in ("file/l.db", "/proc/l.db", ".")),
    *([*CREATE, "--ledger", "sqlite:///new.db", "--composition", "pld", "--plan", place] for place in (".", "none")),
    [*CREATE, "--ledger", "sqlite:///there.db", "--ledger-key", "."],
    *(
        ["ledger", "export", "--ledger", "sqlite:///there.db", "--out", place]
        for place in ("file", "file/x", "/proc/x")
    ),
    *(["evaluate", "--real", "chat.csv", "--synthetic", "chat.csv", "--out", p] for p in ("file", "file/x", "/proc/x")),
    ["report", "file"],
    ["report", "none", "nowhere"],
    ["audit", "file"],
    ["clean", "file/run"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:90])
def test_a_place_that_cannot_be_used_is_one_sentence(here, words, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("rayprivacy: ")
    assert said.count("\n") == 0 or "Usage" in said
    assert "Traceback" not in said
    assert (here / "file").read_text() == "as it was"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no room left"),
        (OSError(errno.EDQUOT, "Quota exceeded", "here/report.html"), "no room left"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "no room left"),
        (
            PermissionError(errno.EACCES, "Permission denied", "here/x"),
            "here/x cannot be read or written (Permission denied)",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "here/x"),
            "here/x cannot be read or written (Read-only file system)",
        ),
    ],
)
def test_whatever_a_command_meets_at_a_place_is_one_sentence(error, says, monkeypatch, capsys):
    def stopped(words):
        raise error

    monkeypatch.setattr(cli, "app", stopped)
    assert main([]) == 2
    assert says in capsys.readouterr().err
    monkeypatch.setattr(cli, "app", lambda words: int("no place"))
    with pytest.raises(ValueError, match="no place"):
        main([])


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "report.html"
    files.write_atomic(path, b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            files.write_atomic(path, b"x" * 5000)
        with pytest.raises(LedgerError, match="refuses") as refused:
            Ledger.open(f"sqlite:///{tmp_path}/l.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(path)
    assert refused.value.exit_code == 2
    assert path.read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path))[-1] == "report.html", "and nothing half-written beside it"


def test_a_full_disk_is_told_from_inside_private_code():
    @Seal(LedgerError, "look").around("writing rows")
    def write():
        raise OSError(errno.ENOSPC, "ann said hello")

    with pytest.raises(ConfigError, match="writing rows found no room on a disk") as caught:
        write()
    assert "ann" not in str(caught.value)


@pytest.mark.parametrize("word", ["--out=~/run", "~/run"])
def test_home_is_written_out_on_the_command_line(word, monkeypatch):
    heard = []
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(cli, "app", heard.append)
    main(["run", word, "-o", "corpus.source=~/chat", "a~/b", "~"])
    assert heard == [["run", word.replace("~", "/home/ann"), "-o", "corpus.source=~/chat", "a~/b", "/home/ann"]]


def test_home_is_written_out_where_python_names_a_place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Ledger.open("sqlite:///~/l.db").close()
    load_or_create_key("~/k")
    assert {"k", "l.db"} <= set(os.listdir(tmp_path / "home"))
    assert os.listdir(tmp_path) == ["home"]
    assert main(["ledger", "show", "--ledger=sqlite:///~/l.db"]) == 0


@pytest.mark.parametrize("cache", [None, "", "not/absolute"])
def test_without_a_home_there_is_no_cache(cache, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert files.user_cache() is None
    assert kept(lambda: 2.5, "anything") == 2.5
    assert sources.resolve_base("someone/model") == "someone/model"
    with pytest.raises(ConfigError, match="no home"):
        files.at_home("~/x")
    assert main(["report", "s3://bucket/run"]) == 2
    assert os.listdir(tmp_path) == []


def test_an_empty_cache_variable_means_the_default(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(files.user_cache()) == "/home/ann/.cache/rayprivacy"
