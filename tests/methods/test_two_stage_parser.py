"""Trees that a public parser reads off private shards: of their own record alone, resumable, and part of the input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_trees import SCHEMA

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import create_key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import ShardManifest, part_path, read_part, write_part
from rayprivacy.corpus.users import Dropped
from rayprivacy.methods.registry import parse_recipe
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
def write(tmp_path: Path, tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes shards without trees: one part, and one held-out user; a parser that says how often it was asked."""
    create_key(tmp_path / "key")
    key, asked = load_key(tmp_path / "key"), list[str]()

    def read(utterance: str) -> str:
        asked.append(utterance)
        return "" if utterance == UNREADABLE else json.dumps({"intent": "Play", "slots": {"track": utterance[:8]}})

    monkeypatch.setattr(private_trees, "_parser", lambda job: read)

    def write(
        name: str, users: list[str], digest: str = "parser", texts: list[str] = SAID, config: str = "made"
    ) -> ParsingJob:
        source = tmp_path / name
        source.mkdir(exist_ok=True)
        entries = [write_part(_rows(shard, own, texts), shard, key, source) for shard, own in ((0, users), (-1, ["z"]))]
        ShardManifest(config, 1, 1, 9, 0.1, (entries[0],), entries[1], Dropped(0, 0, 0, 0, 0)).write(source)
        return ParsingJob(
            model=ModelConfig(base=str(tiny_base), dtype="float32"),
            digest=digest,
            text_tokens=12,
            tree_tokens=48,
            grammar=Grammar(json.dumps(SCHEMA), "json"),
            column="structure",
            unit=PrivacyUnit.USER,
            source=source,
            out=tmp_path / f"{name}-parsed",
            notes=tmp_path / f"{name}-notes",
            key_path=tmp_path / "key",
        )

    write.asked = asked  # type: ignore[attr-defined]
    return write


def _rows(shard: int, users: list[str], texts: list[str]) -> pa.Table:
    rows = [(shard, user, at, text) for user in sorted(users) for at, text in enumerate(texts)]
    names = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    columns = zip(*rows, strict=True)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in zip(names.items(), columns, strict=True)})


def _parsed(job: ParsingJob) -> ShardManifest:
    key = load_key(job.key_path)
    assert begin(job, key) is None
    for part in (0, HOLDOUT):
        private_trees._parse_part(job, part)
    return finish(job, key)


def _trees(job: ParsingJob) -> dict[tuple[str, int], str]:
    rows = [row for part in (0, HOLDOUT) for row in read_part(job.out, part).to_pylist()]
    return {(row["user"], row["record"]): row["structure"] for row in rows}


def test_each_record_has_the_tree_of_its_own_text_whoever_else_is_there(write: Write) -> None:
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


def test_a_killed_task_goes_on_where_it_was(write: Write) -> None:
    whole = write("whole", ["bob"])
    _parsed(whole)
    job = write("killed", ["bob"])
    key = load_key(job.key_path)
    begin(job, key)
    notes = private_trees._notes(job, key) / "0-0"
    done = [json.dumps([record, _trees(whole)["bob", record]]) for record in (0, 2, 0, 1)]  # two tasks, side by side
    notes.write_text("\n".join(done) + '\n[3, "{\\"inte')  # the last line is not finished
    asked = write.asked  # type: ignore[attr-defined]
    asked.clear()
    private_trees._parse_part(job, 0)
    assert asked == SAID[3:]
    assert read_part(job.out, 0)["structure"].to_pylist() == read_part(whole.out, 0)["structure"].to_pylist()
    private_trees._parse_part(job, HOLDOUT)
    finish(job, key)
    assert part_path(job.out, 0).read_bytes() == part_path(whole.out, 0).read_bytes()
    asked.clear()
    assert begin(job, key) is not None, "what is there is used again"
    assert asked == []


def test_what_a_killed_task_noted_of_another_corpus_is_not_used(write: Write) -> None:
    """Whoever deletes a user and resumes has other places for all later records."""
    killed = write("one", ["ann", "bob"], texts=["play a", "play b"])
    begin(killed, load_key(killed.key_path))
    private_trees._parse_part(killed, 0)
    job = write("one", ["bob"], texts=["stop c", "stop d"])
    _parsed(job)
    tracks = [json.loads(_trees(job)["bob", record])["slots"]["track"] for record in range(2)]
    assert tracks == ["stop c", "stop d"]
    assert not job.notes.exists()


def test_a_source_whose_time_stamp_alone_has_changed_is_not_read_again(write: Write) -> None:
    found = _parsed(write("one", ["bob"]))
    job = write("one", ["bob"], config="made of the same rows, later")
    assert begin(job, load_key(job.key_path)) == found
    other = write("one", ["ann"], config="made of the same rows, later")
    assert begin(other, load_key(other.key_path)) is None


def test_another_parser_makes_another_input_of_the_release(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write("one", ["bob"])
    key, first = load_key(job.key_path), _parsed(job).corpus_digest(load_key(job.key_path))
    monkeypatch.setattr(private_trees, "_parser", lambda job: lambda utterance: "{}")
    other = write("one", ["bob"], digest="another parser")
    assert begin(other, key) is None, "trees of the former parser are not used again"
    assert _parsed(other).corpus_digest(key) != first


def test_shards_that_were_changed_are_refused(write: Write) -> None:
    job = write("one", ["bob"])
    _parsed(job)
    part_path(job.out, 0).write_bytes(b"other")
    with pytest.raises(Exception, match="was changed after it was written"):
        begin(job, load_key(job.key_path))


def test_an_error_around_private_text_quotes_none_of_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(utterance: str) -> str:
        raise MemoryError(utterance)

    job = write("one", ["bob"])
    begin(job, load_key(job.key_path))
    monkeypatch.setattr(private_trees, "_parser", lambda job: broken)
    with pytest.raises(ReleaseError, match="reading trees off private text stopped with MemoryError") as refused:
        private_trees._parse_part(job, 0)
    assert "play" not in str(refused.value)
    assert refused.value.__context__ is None


def _recipe(**blocks: Any) -> TwoStageRecipe:
    given = {"method": "two_stage", "corpus": {"labels": []}, "parser": {"source": "public.parquet"}} | blocks
    recipe = parse_recipe(given)
    assert isinstance(recipe, TwoStageRecipe)
    return recipe


def test_the_plan_shows_the_parser_and_charges_nothing_for_it() -> None:
    recipe = _recipe()
    plan = plan_run(recipe)
    assert [stage.reads for stage in plan.stages[:2]] == ["public text", "private text"]
    assert [stage.name for stage in plan.stages[:2]] == [PARSER, PARSING]
    assert not plan.stages[0].charges
    assert not plan.stages[1].charges
    assert any("one record at a time" in sentence for sentence in plan.assumptions)
    column = plan_run(_recipe(corpus={"labels": ["lispress"]}, parser=None))
    assert plan.charges == column.charges
    assert recipe.release_id != _recipe(parser={"source": "other.parquet"}).release_id
