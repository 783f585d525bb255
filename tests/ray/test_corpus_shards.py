"""The corpus through a real Ray: units, formats, blocks, resume, tampering, errors, and what errors and logs say."""

import json
import os
import random
import signal
import time
import traceback

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import ray.data
from ray_processes import log_text

from rayprivacy.core.errors import ConfigError, CorpusError, ShardError
from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import TEST_SECRET, create_key, load_key
from rayprivacy.core.private import digest_file
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus import shards
from rayprivacy.corpus.manifest import part_paths, read_holdout, read_manifest, read_part
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.sources import CHITCHAT
from rayprivacy.corpus.verify import SEAL, shards_per_phrase, verify_shards, verify_with_ray
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.methods.generator.method import label_sums, sums_of
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.work import mapping
from rayprivacy.work.mapping import in_tasks, numbers, on_numbers, rows_of

pytestmark = pytest.mark.usefixtures("local_ray")
SHARDS, PER_PART = 12, 5


@pytest.fixture
def key_path(tmp_path):
    """The fixed key: which texts are held out does not change from run to run."""
    write_atomic(tmp_path / "key", TEST_SECRET, 0o600)
    return tmp_path / "key"


def corpus(seed=0):
    """Thirty integer users with nulls, an extra column, duplicates, one user far over the bound."""
    chance = random.Random(seed)
    rows = [{"uid": n % 30, "body": f" message {n} ", "topic": "ab"[n % 2], "extra": n} for n in range(240)]
    rows += [{"uid": 3, "body": f"chatty {n}", "topic": "a", "extra": n} for n in range(100)]
    rows += rows[:20] + [{"uid": None, "body": "nobody", "topic": "a", "extra": 0}] * 5
    rows += [{"uid": 5, "body": body, "topic": "a", "extra": 0} for body in (None, "  ")]
    chance.shuffle(rows)
    return rows


def write(rows, path, files=1):
    path.mkdir()
    for index in range(files):
        table = pa.Table.from_pylist(rows[index::files])
        match path.name.split("-")[0]:
            case "parquet":
                pq.write_table(table, path / f"{index}.parquet", row_group_size=50)
            case "csv":
                pa.csv.write_csv(table, path / f"{index}.csv")
            case "jsonl":
                (path / f"{index}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[index::files]))
    return settings(path)


def settings(path, **changes):
    known = {"text": "body", "user": "uid", "labels": ("topic",), "max_records_per_user": 6, "holdout": 0.2}
    return CorpusConfig(**({"source": str(path)} | known | changes))


def test_formats_and_blocks_give_the_same_bytes(tmp_path, key_path):
    made, key = {}, load_key(key_path)
    for name, seed, files in (("parquet", 0, 1), ("csv", 1, 5), ("jsonl", 2, 2)):
        config = write(corpus(seed), tmp_path / name, files)
        made[name] = shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / f"out-{name}")
        verify_shards(tmp_path / f"out-{name}", key)
    assert len({tuple(entry.sha256 for entry in manifest.files) for manifest in made.values()}) == 1
    dropped = [manifest.dropped for manifest in made.values()]
    totals = {(counts.null_user, counts.empty_text, counts.duplicates + counts.over_bound) for counts in dropped}
    assert totals == {(5, 2, 360 - 30 * 6)}
    assert (made["csv"].users, sum(entry.rows for entry in made["csv"].files)) == (30, 30 * 6)
    fine = shard_corpus(settings(tmp_path / "csv"), key_path, SHARDS, 1, tmp_path / "fine")
    assert len(fine.parts) == SHARDS
    assert fine.corpus_digest(key) == made["csv"].corpus_digest(key)


def test_which_file_a_repeated_turn_is_in_changes_no_document(tmp_path, key_path):
    """Files are read in blocks of their own, and large ones in several, as many as all users' rows fill."""
    turns = [
        {"uid": f"u{n % 4}", "body": f"ok {n % 8}", "talk": n % 8, "turn": n // 8, "topic": "a"} for n in range(48)
    ]
    join = {"by": "talk", "order": "turn"}
    made = {}
    for name, files in (("once", [turns]), ("jsonl-one", [turns + turns]), ("jsonl-two", [turns, turns])):
        (tmp_path / name).mkdir()
        for number, rows in enumerate(files):
            (tmp_path / name / f"{number}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        config = settings(tmp_path / name, join=join)
        made[name] = shard_corpus(config, key_path, 2, 1, tmp_path / f"out-{name}")
    digests = {manifest.corpus_digest(load_key(key_path)) for manifest in made.values()}
    assert len(digests) == 1
    assert {sum(entry.rows for entry in manifest.files) for manifest in made.values()} == {8}
    assert [made[name].dropped.duplicates for name in ("once", "jsonl-one", "jsonl-two")] == [0, 48, 48]


INTEGERS = pytest.param(pa.int64(), marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("ids", [INTEGERS, pa.float64(), pa.dictionary(pa.int32(), pa.string())])
def test_planted_users_go_with_ids_of_any_type(tmp_path, key_path, ids):
    users = pa.array(range(8), pa.int64())
    users = users.cast(pa.string()).dictionary_encode() if pa.types.is_dictionary(ids) else users.cast(ids)
    (tmp_path / "source").mkdir()
    table = pa.table({"uid": users, "body": ["hello"] * 8, "topic": ["a"] * 8})
    pq.write_table(table, tmp_path / "source" / "0.parquet")
    planted = pa.table({"user": ["eve"], "text": pa.array(["a secret"], pa.large_string())})
    out = tmp_path / "out"
    shard_corpus(settings(tmp_path / "source", holdout=0.0), key_path, 1, 1, out, planted=planted)
    assert sorted(read_part(out, 0)["user"].to_pylist()) == [*map(str, range(8)), "eve"]


def test_files_resume_and_tampering(tmp_path, key_path):
    config, out = write(corpus(), tmp_path / "parquet"), tmp_path / "out"
    manifest = shard_corpus(config, key_path, SHARDS, PER_PART, out)
    paths = sorted(out.iterdir())
    parts = [f"part-0000{part}.parquet" for part in range(3)]
    assert [path.name for path in paths] == ["holdout.parquet", "manifest.json", *parts]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert out.stat().st_mode & 0o777 == 0o700
    part = read_part(out, 1)
    assert part.schema.names == ["shard", "user", "record", "text", "topic"]
    assert part.schema.types == [pa.int32(), pa.string(), pa.int32(), pa.large_string(), pa.string()]
    assert set(part["shard"].to_pylist()) <= set(range(5, 10))
    assert set(read_holdout(out)["shard"].to_pylist()) == {-1}

    with pytest.raises(ShardError, match="puts elsewhere"):
        verify_shards(out, create_key(tmp_path / "other"))

    times = [path.stat().st_mtime_ns for path in paths]
    assert shard_corpus(config, key_path, SHARDS, PER_PART, out) == manifest == read_manifest(out)
    assert [path.stat().st_mtime_ns for path in paths] == times

    pq.write_table(part.slice(1), out / "part-00001.parquet")
    with pytest.raises(ShardError, match=r"part-00001\.parquet was changed"):
        shard_corpus(config, key_path, SHARDS, PER_PART, out)
    with pytest.raises(ShardError, match=r"part-00001\.parquet was changed"):
        verify_shards(out, load_key(key_path))
    body = json.loads((out / "manifest.json").read_text())
    body["parts"][1]["sha256"] = digest_file(out / "part-00001.parquet")
    (out / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(ShardError, match=r"manifest\.json was changed"):
        verify_shards(out, load_key(key_path))


LIST = ("jsonl", '{"uid": 1, "body": "hello", "topic": ["SECRET"]}\n')


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("csv", "uid,body,topic\n1,hello,a\nSECRET,SECRET\n"),
        ("jsonl", '{"uid": 1, "body": "hello"}\n{"uid": "SECRET", "body": "SECRET\n'),
        pytest.param(*LIST, marks=pytest.mark.exhaustive),
    ],
)
def test_a_failing_row_leaks_nothing(tmp_path, key_path, local_ray, kind, data):
    (tmp_path / f"SECRET-user.{kind}").write_text(data.replace("SECRET", "Xq7-private"))
    with pytest.raises(CorpusError) as caught:
        shard_corpus(settings(tmp_path, labels=("topic",) if "topic" in data else ()), key_path, 4, 2, tmp_path / "out")
    assert "Xq7-private" not in "".join(traceback.format_exception(caught.value)) + log_text(local_ray)
    assert "SECRET-user" not in str(caught.value)
    assert caught.value.__context__ is None
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (pa.table({"uid": [1] * 9, "body": list("abcdefghi"), "topic": ["a"] * 9}), "nobody to hide among"),
        (pa.table({"uid": [1], "body": ["x"]}), "corpus.labels is 'topic'.*uid, body"),
        (pa.table({"uid": [1], "body": [5], "topic": ["a"]}), "int64"),
    ],
)
def test_unusable_corpora(tmp_path, key_path, table, told):
    pq.write_table(table, tmp_path / "some.parquet")
    with pytest.raises(CorpusError, match=told):
        shard_corpus(settings(tmp_path / "some.parquet"), key_path, 4, 2, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_less_memory_makes_more_files_of_the_same_rows(tmp_path, key_path):
    """And what does not fit into one file goes through a shuffle: the bytes are those of one task."""
    draw = random.Random(0)
    rows = {"uid": [f"u{draw.randrange(900)}" for _ in range(30_000)]}
    rows |= {"body": [f"words {n % 9000} " * 9 for n in range(30_000)], "topic": ["ab"[n % 2] for n in range(30_000)]}
    pq.write_table(pa.table(rows), tmp_path / "all.parquet", row_group_size=4000)
    config, key = settings(tmp_path / "all.parquet", holdout=0.3, max_records_per_user=30), load_key(key_path)
    made = {}
    for name, memory in (("whole", 2 << 30), ("split", 4 << 20)):
        made[name] = shard_corpus(config, key_path, 2, 1, tmp_path / name, memory=memory)
        verify_with_ray(tmp_path / name, key_path, PrivacyUnit.USER)
    split = tmp_path / "split"
    assert len(part_paths(split, 0)) > 2
    assert not made["whole"].more
    assert made["split"].corpus_digest(key) == made["whole"].corpus_digest(key)
    lost = [(counts.null_user, counts.duplicates + counts.over_bound) for counts in (m.dropped for m in made.values())]
    assert lost[0] == lost[1]
    for part in (-1, 0, 1):
        assert read_part(split, part).equals(read_part(tmp_path / "whole", part))
    assert shard_corpus(config, key_path, 2, 1, split, memory=2 << 30) == made["split"], "as it lies there"
    assert not [path for path in split.iterdir() if path.name.startswith(".")]

    codes = Codes(CodesConfig(values={"topic": ("a", "b")}), ("topic",))
    mechanism = HistogramMechanism(cells=codes.cells, sigma=5.0)
    expected = sum(sums_of(read_part(tmp_path / "whole", part), codes, mechanism) for part in (0, 1))
    assert label_sums(split, 2, codes, mechanism).reveal().tolist() == expected.tolist()
    part_paths(split, 0)[2].unlink()
    with pytest.raises(ShardError, match=r"part-00000-00002\.parquet is missing"):
        verify_with_ray(split, key_path, PrivacyUnit.USER)


def test_a_task_that_is_killed_is_done_again(tmp_path):
    def dies_once(folder, number):
        if number == 3 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    assert sorted(on_numbers(dies_once, tmp_path, range(9), "squaring", SEAL)) == [(n, n * n) for n in range(9)]
    assert (tmp_path / "died").exists()


def test_a_task_that_is_killed_again_and_again_is_given_up_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(mapping, "LOSSES", 1)

    def dies(folder, number):
        with (folder / "tries").open("a") as file:
            file.write(".")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ShardError, match=r"^squaring lost processes again and again: check the memory") as caught:
        list(on_numbers(dies, tmp_path, [7], "squaring", SEAL))
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert (tmp_path / "tries").read_text() == ".."


def test_nothing_is_left_out_where_a_program_lets_ray_leave_blocks_out(monkeypatch):
    own = ray.data.DataContext.get_current()
    monkeypatch.setattr(own, "max_errored_blocks", -1)
    monkeypatch.setattr(own, "enable_progress_bars", True)

    def fails(job, number):
        raise ValueError("Xq7-private")

    with pytest.raises(ShardError, match=r"^squaring stopped with "):
        list(on_numbers(fails, None, range(3), "squaring", SEAL))
    assert (own.max_errored_blocks, own.enable_progress_bars) == (-1, True), "the program's own settings stay"


@pytest.mark.exhaustive
def test_a_shuffle_that_ray_gives_up_is_begun_anew(tmp_path):
    def dies(rows):
        (tmp_path / f"tried-{time.time_ns()}").touch()
        if len([*tmp_path.glob("tried-*")]) <= 4:  # once, and as often as Ray repeats a task that groups
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    def read(block):
        (tmp_path / f"read-{time.time_ns()}").touch()
        return block

    grouped = in_tasks(numbers(range(3)), read).groupby("number", num_partitions=1)
    rows = rows_of(grouped.map_groups(dies, batch_format="pyarrow"), "grouping", SEAL)
    assert sorted(row["number"] for row in rows) == [0, 1, 2]
    assert len([*tmp_path.glob("read-*")]) == 6


def test_the_packaged_chat_is_sharded(tmp_path, key_path):
    manifest = shard_corpus(CorpusConfig(source=CHITCHAT, max_records_per_user=8), key_path, 40, 10, tmp_path / "out")
    assert len(manifest.files) == 5
    assert 1000 < manifest.users < manifest.rows


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, key_path, monkeypatch):
    config = write(corpus(), tmp_path / "csv")
    monkeypatch.setattr(shards, "source_stamp", lambda config: "of another moment")
    with pytest.raises(CorpusError, match="changed while it was read"):
        shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


RECORD, PHRASE = PrivacyUnit.RECORD, PrivacyUnit.PHRASE


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Xq7 Lee\nzebra\n")
    return path


def sources(tmp_path, texts):
    """The same 240 rows of 20 users: one Parquet file, and three CSV files in another order."""
    rows = [{"user": f"u{n % 20}", "text": texts[n % len(texts)].format(n)} for n in range(240)]
    return [write(rows, tmp_path / "parquet").source, write(rows[::-1], tmp_path / "csv", 3).source]


def test_records_through_ray(tmp_path, key_path):
    key, out = load_key(key_path), tmp_path / "out"
    _, source = sources(tmp_path, ["text {}", "same", "text {}"])
    config = CorpusConfig(source=source, max_records_per_user=None)
    made = shard_corpus(config, key_path, 8, 3, out, RECORD)
    verify_shards(out, key, RECORD)
    assert made.rows == 160 + 20
    rows = [row for part in range(3) for row in read_part(out, part).to_pylist()]
    assert len({row["shard"] for row in rows if row["user"] == rows[0]["user"]}) > 1
    users = shard_corpus(CorpusConfig(source=source), key_path, 8, 3, out)
    assert users.unit is PrivacyUnit.USER
    verify_shards(out, key)


def test_phrases_through_ray(tmp_path, key_path, names, local_ray):
    key, phrases, made = load_key(key_path), load_phrases(str(names)), []
    for name, source in enumerate(sources(tmp_path, ["xq7-LEE {}", "a Zebra", "a [masked]", "{} of zebras"])):
        config = CorpusConfig(source=source, phrases=str(names), max_shards_per_phrase=2, holdout=0.2)
        made.append(shard_corpus(config, key_path, 8, 3, tmp_path / f"{name}", PHRASE))
        verify_shards(tmp_path / f"{name}", key, PHRASE, phrases)
    assert made[0].files == made[1].files
    assert max(shards_per_phrase(tmp_path / "0", made[0], phrases).values()) <= 2
    texts = {text for part in range(3) for text in read_part(tmp_path / "0", part)["text"].to_pylist()}
    assert "a [masked]" in texts
    assert any("zebras" in text for text in texts)
    assert any("xq7-LEE" in text for text in read_holdout(tmp_path / "0")["text"].to_pylist())
    assert "xq7-lee" not in log_text(local_ray).lower()  # ids of Ray may hold the beginning


def test_another_list_shards_anew(tmp_path, key_path, names):
    source, out = sources(tmp_path, ["a zebra {}", "lynx {}"])[0], tmp_path / "out"
    config = CorpusConfig(source=source, phrases=str(names), max_shards_per_phrase=1, holdout=0.0)
    first = shard_corpus(config, key_path, 8, 3, out, PHRASE)
    assert shard_corpus(config, key_path, 8, 3, out, PHRASE) == first  # as it lies there
    names.write_text("lynx\n")
    second = shard_corpus(config, key_path, 8, 3, out, PHRASE)
    verify_shards(out, load_key(key_path), PHRASE, load_phrases(str(names)))
    assert second.config != first.config
    assert "lynx" not in (out / "manifest.json").read_text()
    names.write_text("Xq7 one\none Xq7\n")
    with pytest.raises(ConfigError, match="line 1 ends as line 2 begins") as caught:
        shard_corpus(config, key_path, 8, 3, out, PHRASE)
    assert "xq7" not in "".join(traceback.format_exception(caught.value)).lower().replace(str(tmp_path).lower(), "")
