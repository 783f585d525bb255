"""`rayprivacy hidden` shows what a run would read redacted: the same texts, and every run of hidden words marked."""

import json
import re
import stat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import command
from pyarrow import csv

from rayprivacy import api
from rayprivacy.core.keys import Key
from rayprivacy.corpus.layout import Layout, finish, prepare
from rayprivacy.corpus.sources import read_share, source_stamp
from rayprivacy.corpus.users import clean
from rayprivacy.policies.looked import Counts, look
from rayprivacy.policies.policy import MARK
from rayprivacy.policies.settings import make_policy

TURNS = {
    "user": ["ann", "ann", "ann", "ann", "bob", None, "cat"],
    "text": ["  seat 4 on 555 1234 4567", "my seat", "my seat", "zip code ", "x@y.org x@y.org", "seat", " "],
    "talk": ["1", "1", "1", "2", "1", "1", "1"],
    "turn": [2, 1, 1, 1, 1, 1, 1],
    "slots": ["name O O O O O", "O name", "O name", "", "O name", "O", ""],
}
PLAIN = {"labels": ["slots"]}
JOINED = {"join": {"by": "talk", "order": "turn", "prefix": "USR: ", "words": ["slots"]}}
KINDS = {
    "keywords": ({"kind": "keywords", "file": "words.yaml"}, PLAIN),
    "patterns": ({"kind": "patterns"}, PLAIN),
    "turns": ({"kind": "patterns"}, JOINED),
    "slots": ({"kind": "slots", "column": "slots"}, JOINED),
}


def _write(folder, suffix):
    place, table = folder / f"chats{suffix}", pa.table(TURNS)
    if suffix == ".parquet":
        pq.write_table(table, place)
    elif suffix == ".csv":
        csv.write_csv(table, place)
    else:
        place.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return place.name


def _recipe(folder, name, suffix=".csv"):
    policy, more = KINDS[name]
    recipe = {"method": "domain_private", "corpus": {"source": _write(folder, suffix), "holdout": 0.0} | more}
    if "labels" in more:
        recipe["codes"] = {"values": {"slots": ["O"]}}
    (folder / "words.yaml").write_text("[seat, zip code]")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"policy": policy}))
    return folder / "recipe.yaml"


def _of_run(recipe, policy):
    """The texts of a run, redacted."""
    config, key = recipe.sharded_corpus, Key.for_tests()
    layout = Layout(config, shards=1, per_part=1)
    rows = [clean(piece, config.max_chars)[0] for piece in read_share(config, 0, 1, source_stamp(config))]
    rows = finish(pa.concat_tables(prepare(table, key, layout)[0] for table in rows), 0, key, layout)[0]
    return {policy.redact(row) for row in rows.to_pylist()}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("name", KINDS)
def test_it_shows_the_texts_of_a_run_with_the_words_that_a_run_hides(tmp_path, monkeypatch, name, suffix):
    monkeypatch.chdir(tmp_path)
    recipe = api.load_recipe(_recipe(tmp_path, name, suffix))
    policy, counts, redacted = make_policy(recipe.policy, recipe.kept), Counts(), set()
    for each in look(recipe.sharded_corpus, policy):
        counts.add(each)
        assert "".join(part for part, _ in each.parts()) == each.text
        redacted.add("".join(MARK if is_hidden else part for part, is_hidden in each.parts()))
    assert redacted == _of_run(recipe, policy)
    assert 0 < counts.hidden_words < counts.words
    done = command(["hidden", "recipe.yaml"], tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.partition("\ntexts: ")[0]
    assert {re.sub(r"\[-.*?-\]", MARK, text) for text in shown.strip("\n").split("\n\n")} == redacted
    assert f"{counts.hidden_words} (" in done.stdout


def test_texts_go_to_a_new_file_of_the_owner_and_what_a_terminal_would_obey_is_spelled(tmp_path):
    _recipe(tmp_path, "keywords")
    (tmp_path / "chats.csv").write_text('user,text,slots\nann,"\x1b[31m a seat [bold]",O\n' + "bob,hi,O\n" * 30)
    done = command(["hidden", "recipe.yaml", "--out", "hidden.txt"], tmp_path)
    assert "seat [" not in done.stdout
    written = tmp_path / "hidden.txt"
    assert written.read_text().startswith("\\x1b[31m a [-seat-] [bold]\n\nhi\n\n")
    assert written.read_text().count("hi\n") == 30
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert "texts: 31, 1 (3.2%)" in done.stdout
    assert command(["hidden", "recipe.yaml"], tmp_path).stdout.count("hi\n") == 19
    again = command(["hidden", "recipe.yaml", "--out", "hidden.txt"], tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "name a new file" in again.stderr


WRONG = {
    "no column": (["-o", "corpus.text=utterance"], "corpus.text is 'utterance'"),
    "no file": (["-o", "corpus.source=none.csv"], "corpus.source is 'none.csv'"),
    "no list": (["-o", "policy.file=none.yaml"], "policy.file is 'none.yaml'"),
    "no place": (["--out", "none/hidden.txt"], "none/hidden.txt cannot be"),
    "no text": (["-o", "corpus.source=empty.csv"], "no usable text"),
    "broken": (["-o", "corpus.source=broken.csv"], "inside of quotes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_sentence_and_quotes_no_text(tmp_path, name):
    _recipe(tmp_path, "keywords")
    (tmp_path / "empty.csv").write_text("user,text,slots\n")
    (tmp_path / "broken.csv").write_text('user,text,slots\nann,"my seat,O\n')
    words, said = WRONG[name]
    done = command(["hidden", "recipe.yaml", *words], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert "my seat" not in done.stderr
    assert not list(tmp_path.glob("hidden*"))


def test_a_method_without_a_policy_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text("method: seqpate\n")
    done = command(["hidden", "recipe.yaml"], tmp_path)
    assert done.returncode == 2
    assert "'seqpate', which has no policy" in done.stderr
