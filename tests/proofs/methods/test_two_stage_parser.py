"""Trees that a public parser reads off private shards: of their own record alone, resumable, and part of the input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_jobs import known_key
from small_trees import SCHEMA

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import ShardManifest, part_path, read_part, write_part
from rayprivacy.corpus.users import Dropped
from rayprivacy.methods.two_stage import private_trees
from rayprivacy.methods.two_stage.plan import PARSER, PARSING, plan_run
from rayprivacy.methods.two_stage.private_trees import ParsingJob, begin, finish
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.settings import ModelConfig
from rayprivacy.structures.grammar import Grammar

SAID = ["play home", "stop it", "play the band", "my secret", ""]
UNREADABLE = "my secret"
Write = Callable[..., ParsingJob]


@pytest.fixture
def write(tmp_path, tiny_base, monkeypatch):
    """Writes shards without trees: one part, and one held-out user; a parser that says how often it was asked."""
    path, asked = Path(known_key(tmp_path)), list[str]()

    def read(utterance):
        asked.append(utterance)
        return "" if utterance == UNREADABLE else json.dumps({"intent": "Play", "slots": {"track": utterance[:8]}})

    monkeypatch.setattr(private_trees, "_parser", lambda job: read)

    def write(name, users, digest="parser", texts=SAID, config="made"):
        source = tmp_path / name
        source.mkdir(exist_ok=True)
        entries = [write_part(_rows(n, own, texts), n, load_key(path), source) for n, own in ((0, users), (-1, ["z"]))]
        ShardManifest(config, 1, 1, 9, 0.1, (entries[0],), entries[1], Dropped(0, 0, 0, 0, 0)).write(source)
        model, grammar = ModelConfig(base=str(tiny_base), dtype="float32"), Grammar(json.dumps(SCHEMA), "json")
        places: Any = {"source": source, "out": tmp_path / f"{name}-parsed", "notes": tmp_path / f"{name}-notes"}
        bounds: Any = {"text_tokens": 12, "tree_tokens": 48, "column": "structure", "unit": PrivacyUnit.USER}
        return ParsingJob(model=model, grammar=grammar, digest=digest, key_path=path, **places, **bounds)

    write.asked = asked  # type: ignore[attr-defined]
    return write


def _rows(shard, users, texts):
    kinds = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    rows = [(shard, user, at, text) for user in sorted(users) for at, text in enumerate(texts)]
    return pa.Table.from_pylist([dict(zip(kinds, row, strict=True)) for row in rows], schema=pa.schema(kinds))


def _begun(job):
    return begin(job, load_key(job.key_path))


def _parsed(job):
    assert _begun(job) is None
    for part in (0, HOLDOUT):
        private_trees._parse_part(job, part)
    return finish(job, load_key(job.key_path))


def _trees(job):
    rows = [row for part in (0, HOLDOUT) for row in read_part(job.out, part).to_pylist()]
    return {(row["user"], row["record"]): row["structure"] for row in rows}


def test_each_record_has_the_tree_of_its_own_text_whoever_else_is_there(write):
    job, more = write("one", ["bob", "cat"]), write("more", ["ann", "bob", "cat"])
    manifest = _parsed(job)
    _parsed(more)
    without, having = _trees(job), _trees(more)
    assert {place: having[place] for place in without} == without
    assert set(having) - set(without) == {("ann", record) for record in range(len(SAID))}
    assert json.loads(without["bob", 1])["slots"]["track"] == "stop it"
    assert without["bob", 3] == "", "what cannot be read has the public constant"
    manifest.check_files(job.out)
    assert read_part(job.out, 0).drop_columns(["structure"]) == read_part(job.source, 0)
    assert part_path(job.out, 0).stat().st_mode & 0o077 == 0
    assert not job.notes.exists()


def test_a_killed_task_goes_on_where_it_was(write):
    whole, job, asked = write("whole", ["bob"]), write("killed", ["bob"]), write.asked  # type: ignore[attr-defined]
    _parsed(whole)
    _begun(job)
    notes = private_trees._notes(job, load_key(job.key_path)) / "0-0"
    done = [json.dumps([record, _trees(whole)["bob", record]]) for record in (0, 2, 0, 1)]  # two tasks, side by side
    notes.write_text("\n".join(done) + '\n[3, "{\\"inte')  # the last line is not finished
    asked.clear()
    private_trees._parse_part(job, 0)
    assert asked == SAID[3:]
    assert read_part(job.out, 0)["structure"].to_pylist() == read_part(whole.out, 0)["structure"].to_pylist()
    private_trees._parse_part(job, HOLDOUT)
    finish(job, load_key(job.key_path))
    assert part_path(job.out, 0).read_bytes() == part_path(whole.out, 0).read_bytes()
    asked.clear()
    assert _begun(job) is not None, "what is there is used again"
    assert asked == []


def test_what_a_killed_task_noted_of_another_corpus_is_not_used(write):
    """Whoever deletes a user and resumes has other places for all later records."""
    killed = write("one", ["ann", "bob"], texts=["play a", "play b"])
    _begun(killed)
    private_trees._parse_part(killed, 0)
    job = write("one", ["bob"], texts=["stop c", "stop d"])
    _parsed(job)
    assert [json.loads(_trees(job)["bob", n])["slots"]["track"] for n in range(2)] == ["stop c", "stop d"]
    assert not job.notes.exists()


def test_a_source_whose_time_stamp_alone_has_changed_is_not_read_again(write):
    found, later = _parsed(write("one", ["bob"])), "made of the same rows, later"
    job = write("one", ["bob"], config=later)
    assert _begun(job) == found
    part_path(job.out, 0).write_bytes(b"other")
    with pytest.raises(Exception, match="was changed after it was written"):
        _begun(job)
    assert _begun(write("one", ["ann"], config=later)) is None


def test_another_parser_makes_another_input_of_the_release(write, monkeypatch):
    job = write("one", ["bob"])
    key, first = load_key(job.key_path), _parsed(job)
    monkeypatch.setattr(private_trees, "_parser", lambda job: lambda utterance: "{}")
    other = _parsed(write("one", ["bob"], digest="another parser"))  # those of the former parser are not used again
    assert other.corpus_digest(key) != first.corpus_digest(key)


def test_an_error_around_private_text_quotes_none_of_it(write, monkeypatch):
    def broken(utterance):
        raise RecursionError(utterance)

    _begun(job := write("one", ["bob"]))
    monkeypatch.setattr(private_trees, "_parser", lambda job: broken)
    with pytest.raises(ReleaseError, match="reading trees off private text stopped with RecursionError") as refused:
        private_trees._parse_part(job, 0)
    assert "play" not in str(refused.value)
    assert refused.value.__context__ is None


def test_the_plan_shows_the_parser_and_charges_nothing_for_it():
    def recipe(source):
        return TwoStageRecipe.parse({"corpus": {"labels": []}, "parser": {"source": source}})

    plan = plan_run(recipe("public.parquet"))
    shown = [(stage.name, stage.reads, bool(stage.charges)) for stage in plan.stages[:2]]
    assert shown == [(PARSER, "public text", False), (PARSING, "private text", False)]
    assert plan.charges == plan_run(TwoStageRecipe.parse({"corpus": {"labels": ["lispress"]}})).charges
    assert recipe("public.parquet").release_id != recipe("other.parquet").release_id
