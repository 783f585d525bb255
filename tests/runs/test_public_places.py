"""Two names of one place are found, however they are written; places that only look alike are two."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.sources import CHITCHAT
from rayprivacy.runs.checks import DATASET
from rayprivacy.runs.directory import RECIPE
from rayprivacy.runs.recipe import require_public
from rayprivacy.tuning.trials import SPACE


class Named(Config):
    text: Annotated[str | None, PathKind.PUBLIC_CORPUS] = None
    base: Annotated[str | None, PathKind.PUBLIC_MODEL] = None


def _said(public, private):
    try:
        require_public(Named(text=str(public)), [("corpus.source", str(private))])
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working directory, with a private folder `talk` and a public one beside it."""
    for name in ("talk/2025/chats.jsonl", "talk2/chats.jsonl", "public/chats.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


FILE = "talk/2025/chats.jsonl"
SPELLINGS: dict[str, Callable[[Path], str]] = {
    "as it is": lambda home: FILE,
    "absolute": lambda home: f"{home}/{FILE}",
    "with dots": lambda home: f"./public/../talk//2025/./{FILE.rpartition('/')[2]}",
    "at home": lambda home: f"~/{FILE}",
    "a URI": lambda home: f"file://{home}/{FILE}",
    "a URI with escapes": lambda home: f"file://{home}/{FILE.replace('talk', '%74alk')}",
}


@pytest.mark.parametrize("one", SPELLINGS)
@pytest.mark.parametrize("other", SPELLINGS)
def test_one_file_is_one_place_however_it_is_spelt(one, other, home):
    assert "which is corpus.source, and is declared public" in _said(SPELLINGS[one](home), SPELLINGS[other](home))


LIES_IN, HOLDS, IS = (f"which {how} corpus.source" for how in ("lies in", "holds", "is"))
SHARES = "which shares a file with corpus.source"


def test_what_lies_in_the_corpus_or_holds_it_is_no_public_place(home):
    assert LIES_IN in _said("talk/2025", "talk/")
    assert LIES_IN in _said("talk/not there yet.jsonl", home / "talk")
    assert HOLDS in _said("talk/", FILE)
    assert HOLDS in _said(".", "talk")
    assert IS in _said("talk/", "talk")


def test_links_lead_to_the_same_file(home):
    (home / "file").symlink_to(FILE)
    (home / "folder").symlink_to("talk", target_is_directory=True)
    os.link(FILE, "hard.jsonl")
    for public, private in (("file", FILE), ("hard.jsonl", FILE), ("folder", "talk")):
        assert IS in _said(public, private)
    assert LIES_IN in _said("folder/2025", "talk")
    assert SHARES in _said("hard.jsonl", "talk")


@pytest.mark.parametrize("how", [os.link, os.symlink, lambda file, name: os.symlink(Path(file).parent, name)])
def test_a_public_folder_with_a_link_to_the_corpus_shares_a_file_with_it(how, home):
    assert _said("public", "talk") == ""
    (home / "public" / "deep").mkdir()
    how(home / FILE, home / "public" / "deep" / "linked")
    assert SHARES in _said("public", "talk")
    assert SHARES in _said("public", FILE)


def test_a_folder_that_leads_back_to_itself_is_looked_at_once(home):
    (home / "public" / "again").symlink_to(home / "public", target_is_directory=True)
    assert _said("public", "talk") == ""


@pytest.mark.parametrize(
    ("public", "private", "said"),
    [
        ("s3://bucket/chats", "s3://bucket/chats/", "is"),
        ("s3://bucket//chats/./a.parquet", "s3://BUCKET/chats", "lies in"),
        ("s3://bucket/chats?region=eu-west-1", "s3://bucket/chats", "is"),
        ("s3://bucket/ch%61ts", "s3://bucket/chats", "is"),
        ("s3://bucket", "s3://bucket/chats", "holds"),
        ("gcs://bucket/chats", "gs://bucket/chats", "is"),
        ("hdfs://node:8020/chats/2025", "hdfs://node/chats", "lies in"),
        (CHITCHAT, CHITCHAT, "is"),
        (DATASET, DATASET, "is"),
    ],
)
def test_places_in_stores_and_names_are_compared_too(public, private, said):
    assert f"which {said} corpus.source" in _said(public, private)


@pytest.mark.parametrize(
    ("public", "private"),
    [
        ("public", "talk"),
        ("talk2", "talk"),
        ("s3://bucket/chats2", "s3://bucket/chats"),
        ("s3://bucket/Chats", "s3://bucket/chats"),
        ("s3://other/chats", "s3://bucket/chats"),
        ("gs://bucket/chats", "s3://bucket/chats"),
        ("s3://bucket/chats", "talk"),
        (CHITCHAT, "."),
        (DATASET, "."),
        ("public/chats.jsonl", CHITCHAT),
    ],
)
def test_other_places_are_public_as_far_as_can_be_told(public, private, home):
    assert _said(public, private) == ""


def test_a_model_that_is_no_folder_here_is_an_id_of_the_hub(home):
    require_public(Named(base="some-owner/some-model-1.5"), [("corpus.source", ".")])
    (home / "some-owner" / "some-model-1.5").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"base is 'some-owner/some-model-1\.5', which lies in corpus\.source"):
        require_public(Named(base="some-owner/some-model-1.5"), [("corpus.source", ".")])


def test_a_query_of_a_uri_is_not_repeated():
    said = _said("s3://bucket/chats?endpoint_override=secret-host", "s3://bucket/chats")
    assert "text is 's3://bucket/chats'" in said
    assert "secret-host" not in said


@pytest.mark.parametrize("beside", [RECIPE, SPACE])
def test_the_private_folder_of_any_run_is_private(beside, home):
    run = home / "runs" / "one"
    (run / "private" / "shards").mkdir(parents=True)
    (run / "private" / "shards" / "part.parquet").touch()
    (run / "synthetic.parquet").touch()
    assert _said("runs/one/private/shards", "talk") == "", "nothing says that it is of a run"
    (run / beside).touch()
    for inside in ("private", "private/shards", "private/shards/part.parquet", "", ".."):
        assert "which holds files of the private folder of a run, and is declared public" in _said(run / inside, "talk")
    (home / "public" / "linked").symlink_to(run / "private", target_is_directory=True)
    assert "which holds files of the private folder of a run" in _said("public", "talk")
    assert _said(run / "synthetic.parquet", "talk") == "", "what was released is public"


def test_nothing_that_a_finished_run_keeps_private_is_taken_for_public(bench):
    """A real run, so that the names of its files are those that are looked for."""
    run = bench.run().path
    assert _said(run / "private", "talk")
    assert _said(run, "talk")
    assert _said(run / "synthetic.parquet", "talk") == ""
