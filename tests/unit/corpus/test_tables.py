"""Tables are known by their content, and what is wrong with one is said in a sentence; no Ray."""

import json

import pyarrow as pa
import pytest
import table_sources

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.core.keys import Key
from rayprivacy.corpus import tables
from rayprivacy.corpus.public import public_texts
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import locate

KEY = Key.for_tests()
ROWS = pa.table({"who": ["ann"], "said": ["hello"], "number": [1]})


def _touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["_delta_log/0.json", "a.parquet"], "a Delta table"),
        (["_versions/1.manifest"], "a Lance table"),
        (["dataset_info.json", "state.json"], "a Hugging Face dataset"),
    ],
)
def test_a_folder_is_known_by_its_content_and_is_no_folder_of_files(tmp_path, names, words):
    place = _touch(tmp_path / "chats", *names)
    for each in (place, (tmp_path / "chats").as_uri()):
        assert tables.table_of(each).kind.words == words
    with pytest.raises(CorpusError, match=rf"which is {words}, and files are read here"):
        locate(CorpusConfig(source=place))
    with pytest.raises(ConfigError, match=rf"pretrain\.source is .*, which is {words}"):
        public_texts(place, "text", "pretrain")


def test_files_and_what_is_not_there_are_no_table(tmp_path):
    for names in ([], ["a.parquet"], ["metadata/a.json", "a.parquet"], ["dataset_info.json", "a.parquet"]):
        assert tables.table_of(_touch(tmp_path / str(len(names)), *names)) is None
    assert tables.table_of(str(tmp_path / "1" / "a.parquet")) is None


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["dataset_dict.json", "train/state.json"], "of several splits: name the folder of one"),
        (["metadata/00000-x.metadata.json", "data/a.parquet"], "write iceberg:CATALOG.NAMESPACE.TABLE"),
    ],
)
def test_a_folder_that_is_no_single_table_is_refused(tmp_path, names, told):
    place = _touch(tmp_path / "chats", *names)
    for find in (tables.table_of, lambda source: locate(CorpusConfig(source=source))):
        with pytest.raises(CorpusError, match=told):
            find(place)


@pytest.mark.parametrize("name", ["iceberg:", "iceberg:chats", "iceberg:a.b", "iceberg:a..c"])
def test_a_name_of_iceberg_has_three_parts(name):
    with pytest.raises(CorpusError, match=r"write iceberg:CATALOG\.NAMESPACE\.TABLE"):
        tables.table_of(name)


def test_an_iceberg_table_is_no_place_of_files():
    with pytest.raises(CorpusError, match="which is an Iceberg table, and files are read here"):
        locate(CorpusConfig(source="iceberg:a.b.c"))


@pytest.mark.parametrize(
    ("module", "extra", "names"), [("deltalake", "delta", ["_delta_log/0"]), ("lance", "lance", ["_versions/1"])]
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, module, extra, names):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    table = tables.table_of(_touch(tmp_path, *names))
    with pytest.raises(CorpusError, match=rf"{module} is not installed: run pip install 'rayprivacy\[{extra}\]'"):
        table.latest(KEY)


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_an_unknown_version_is_refused(tmp_path, kind):
    table = tables.table_of(table_sources.TABLES[kind](tmp_path, ROWS))
    assert table.columns(table.latest(KEY)) == ROWS.column_names
    with pytest.raises(CorpusError, match=r"has no version 99 that can be opened \(\w+\)") as caught:
        table.columns("99")
    assert caught.value.__context__ is None


def test_an_unknown_table_or_catalogue_of_iceberg_is_refused(tmp_path):
    pytest.importorskip("pyiceberg")
    with pytest.raises(CorpusError, match=r"'iceberg:nowhere\.a\.b', an Iceberg table, which cannot be opened \(\w+\)"):
        tables.table_of("iceberg:nowhere.a.b").latest(KEY)


def test_options_of_a_uri_are_not_taken(monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda name: name)
    table = tables.Table(tables._DELTA, "s3://bucket/chats?region=eu")
    with pytest.raises(CorpusError, match=r"takes its options from the environment") as caught:
        table.latest(KEY)
    assert "region" not in str(caught.value)


def test_a_saved_dataset_is_named_by_a_keyed_digest(tmp_path):
    place = _touch(tmp_path, "dataset_info.json", "state.json", "data.arrow")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "f"}))
    table = tables.table_of(place)
    before = table.latest(KEY)
    assert before == table.latest(KEY) != table.latest(Key(bytes(32)))
    (tmp_path / "data.arrow").write_text("longer")
    assert table.latest(KEY) != before
