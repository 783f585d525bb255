"""Writing on a real Ray: one file, in order, whole or not at all, and the same for any number of actors."""

import os
import re
import signal
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray_processes import actors_of, peak_rise
from zygote import fork

from rayprivacy.core.errors import ClusterError, ConfigError, RayPrivacyError
from rayprivacy.generation import writing
from rayprivacy.generation.codes import CodedPrompts, Codes, CodesConfig
from rayprivacy.generation.decode import BATCH, sample
from rayprivacy.generation.fast import convert
from rayprivacy.generation.settings import ONNX, SamplingConfig
from rayprivacy.generation.text_writers import WritingTask, holds_structure, is_degenerate
from rayprivacy.generation.writing import METADATA, Blocks, Written, read_written, write_samples
from rayprivacy.work import mapping

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray", "one_thread")]
CODES = Codes(CodesConfig(values={"topic": ("trains", "soup"), "stars": ("1", "5")}), ("topic", "stars"))
CONFIG = SamplingConfig(max_tokens=3, top_p=0.9, seed=3)  # so short that many a text has no letters
BLOCK = CODES.draw(CODES.uniform, BATCH, seed=0)
CELLS = [*BLOCK, *BLOCK, *BLOCK[: BATCH // 2]]  # the second block asks what the first one asked
Prompts = list[tuple[int, str]]


def prompts(cells):
    return [(cell, CODES.text(cell)) for cell in cells]


def task(model, config=CONFIG):
    return WritingTask(model, config, "transformers", 1, model)


def alone(backbone, asked, config=CONFIG):
    """What one process without Ray writes, block after block."""
    pieces = [asked[at : at + BATCH] for at in range(0, len(asked), BATCH)]
    texts = []
    for block, piece in enumerate(pieces):
        prompts = [prompt for _, prompt in piece]
        documents = sample(backbone.model, backbone, prompts, task(Path(), config).at(block))
        texts += map(backbone.text_after, prompts, documents)
    return texts


@pytest.fixture(scope="module")
def first(tiny_base, local_ray, tmp_path_factory):
    """A file that one actor wrote, and its counts."""
    out = tmp_path_factory.mktemp("first") / "synthetic.parquet"
    return out, write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, out, actors=1)


def test_two_actors_write_the_same_bytes_as_one(first, tiny_base, tmp_path):
    out = tmp_path / "synthetic.parquet"
    assert write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, out, actors=2) == first[1]
    assert out.read_bytes() == first[0].read_bytes()
    assert list(tmp_path.iterdir()) == [out]


def test_the_file_holds_the_sound_texts_with_their_labels_in_order(first, tiny_backbone):
    path, counts = first
    texts = alone(tiny_backbone, prompts(CELLS))
    rows = [{"text": text, **CODES.labels(cell)} for text, cell in zip(texts, CELLS, strict=True)]
    assert pq.read_table(path).to_pylist() == [row for row in rows if is_degenerate(row["text"]) is None]
    reasons = Counter(reason for text in texts if (reason := is_degenerate(text)))
    assert counts == Written(len(texts) - reasons.total(), dict(sorted(reasons.items())))
    assert 0 < reasons["no letters"] < len(texts) / 2
    assert not any("topic:" in text for text in texts)
    columns = [("text", pa.large_string()), ("topic", pa.string()), ("stars", pa.string())]
    assert pq.read_schema(path).remove_metadata() == pa.schema(columns)
    assert read_written(path) == counts


def test_texts_that_go_on_with_the_structure_of_their_prompts_are_dropped(first, tiny_base, tmp_path):
    path, counts = first
    texts = pq.read_table(path)["text"].to_pylist()
    opened = set(re.findall(r"\((\w+)", " ".join(texts)))
    kept = [text for text in texts if not holds_structure(text, opened)]
    assert 0 < len(kept) < len(texts)
    out = tmp_path / "synthetic.parquet"
    found = write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, out, actors=1, names=frozenset(opened))
    assert pq.read_table(out)["text"].to_pylist() == kept
    assert found == Written(len(kept), {**counts.degenerate, "structure": len(texts) - len(kept)})


def test_a_fast_engine_writes_the_same_with_two_actors_and_after_a_kill(first, tiny_base, tiny_backbone, tmp_path):
    files, work = [tmp_path / "one.parquet", tmp_path / "two.parquet"], tmp_path / "public"
    work.mkdir()
    settings = {"engine": ONNX, "workspace": work}
    counts = write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, files[0], actors=1, **settings)
    assert list(work.iterdir()) == []
    left = convert(tiny_backbone.model, tiny_backbone, work)  # as a killed run leaves it
    assert write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, files[1], actors=2, **settings) == counts
    assert not left.exists()
    assert files[0].read_bytes() == files[1].read_bytes() != first[0].read_bytes()
    assert abs(counts.texts - first[1].texts) < len(CELLS) / 5
    assert not any("topic:" in text for text in pq.read_table(files[0])["text"].to_pylist())


def test_no_two_blocks_share_a_seed(tiny_backbone):
    seeds = [task(Path()).at(block).seed for block in range(10_000)]
    other = [task(Path(), CONFIG.model_copy(update={"seed": 4})).at(block).seed for block in range(10_000)]
    assert len({*seeds, *other}) == 20_000
    assert all(0 <= seed < 2**32 for seed in seeds)
    texts = alone(tiny_backbone, prompts(CELLS))
    assert sum(one == two for one, two in zip(texts[:BATCH], texts[BATCH : 2 * BATCH], strict=True)) < BATCH / 10


def blocks_of(folder, model, asked, source="a model", config=CONFIG):
    return Blocks(folder / "synthetic.parquet", task(model, config), asked, source)


def test_a_killed_actor_changes_no_text(tiny_base, tiny_backbone, tmp_path):
    asked, config = prompts(BLOCK * 6), CONFIG.model_copy(update={"max_tokens": 16})
    blocks, told = blocks_of(tmp_path, tiny_base, asked, config=config), []

    def kill(done):
        told.append(done)
        if done == BATCH:
            os.kill(actors_of("MapWorker")[0].pid, signal.SIGKILL)

    writing.sample_blocks(task(tiny_base, config), blocks, 2, kill)
    assert told == [BATCH * done for done in range(7)], "each block counts once"
    texts = [text for block in blocks.tables() for text in block["text"].to_pylist()]
    assert texts == alone(tiny_backbone, asked, config)


def test_actors_that_die_again_and_again_and_those_without_room_are_one_sentence(tiny_base, tmp_path, monkeypatch):
    class Dying:  # in here, so that it travels by value
        def __init__(self, task): ...

        def __call__(self, number, block):
            os.kill(os.getpid(), signal.SIGKILL)

    blocks = blocks_of(tmp_path, tiny_base, prompts(BLOCK))
    monkeypatch.setattr(mapping, "LOSSES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "Sampler", Dying)
        with pytest.raises(
            RayPrivacyError, match=r"^writing synthetic text lost processes again and again: .*resume\.$"
        ):
            writing.sample_blocks(task(tiny_base), blocks, 1)
    monkeypatch.setattr(mapping, "ROOM_S", 1)
    huge = replace(task(tiny_base), threads=1000)
    with pytest.raises(ClusterError, match=r"^writing synthetic text found no room in the cluster within 1 seconds: "):
        writing.sample_blocks(huge, blocks, 1)
    assert blocks.left() == [0]


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_writer_that_died_goes_on_behind_its_finished_blocks(named, first, tiny_base, tmp_path, monkeypatch):
    out, source = tmp_path / "synthetic.parquet", "a model" if named else ""
    write, kept = Blocks.write, []

    def killed(self, block, texts):
        if len(kept) == 2:
            raise KeyboardInterrupt
        watched(self, block, texts)

    def watched(self, block, texts):
        kept.append(block)
        write(self, block, texts)

    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, out, actors=1, source=source)
    assert not out.exists()
    finished, told = set(kept), []
    kept.clear()
    monkeypatch.setattr(Blocks, "write", watched)
    counts = write_samples(tiny_base, prompts(CELLS), CONFIG, CODES, out, actors=2, source=source, progress=told.append)
    assert {*kept} == {0, 1, 2} - (finished if named else set())
    assert counts == replace(first[1], source=source)
    assert pq.read_table(out).equals(pq.read_table(first[0]))
    assert told == sorted(told)
    assert told[0] == (sum(len(CELLS[block * BATCH :][:BATCH]) for block in finished) if named else 0)
    assert told[-1] == len(CELLS)
    assert list(tmp_path.iterdir()) == [out], "blocks are gone"


def test_a_block_is_taken_over_by_what_decides_it_alone(tiny_base, tmp_path):
    """Neither other settings, nor another model or other prompts, find the texts of this one."""
    blocks, asked = blocks_of(tmp_path, tiny_base, prompts(BLOCK * 2)), prompts(BLOCK * 2)
    texts = pa.table({"text": ["a text"]})
    other = CONFIG.model_copy(update={"seed": 4})
    for change in ({"config": other}, {"source": "another model"}, {"source": ""}, {"asked": asked[1:] + asked[:1]}):
        blocks.write(1, texts)
        assert blocks_of(tmp_path, tiny_base, **{"asked": asked} | change).left() == [0, 1], change
        assert blocks.left() == [0, 1], "what nobody will read is removed"
    blocks.write(1, texts)
    longer = blocks_of(tmp_path, tiny_base, prompts(BLOCK * 3))
    assert longer.left() == [0, 2], "a block does not depend on those behind it"


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_drivers_memory_does_not_grow_with_the_texts(tiny_base, tmp_path, monkeypatch):
    class Long:
        """In place of a model: texts of a thousand characters, at once; in here, so that it travels by value."""

        def __init__(self, task): ...

        def __call__(self, number, block):
            texts = [(f"{number} {place} " + "so nice " * 125)[:1000] for place in range(len(block))]
            columns = {"cell": pa.array([0] * len(block), pa.int64()), "text": pa.array(texts, pa.large_string())}
            return pa.table(columns | {"reason": pa.nulls(len(block), pa.string())}, metadata={METADATA: b"{}"})

    monkeypatch.setattr(writing, "Sampler", Long)
    rises = []
    for count in (5_000, 10_000, 110_000):  # the first one warms up
        asked, out = CodedPrompts([0] * count, CODES), tmp_path / f"{count}"
        rises.append(peak_rise(partial(write_samples, tiny_base, asked, CONFIG, CODES, out, actors=2)))
        assert pq.read_metadata(tmp_path / f"{count}").num_rows == count
    print(f"rises of the peak: {[rise >> 20 for rise in rises]} MB")
    assert rises[2] - rises[1] < 40 * 2**20, "100,000 more texts are 100 MB"


def test_an_actor_that_cannot_load_the_model_says_so_in_one_sentence(tiny_base, tmp_path):
    broken = tmp_path / "model"
    broken.mkdir()
    (broken / "config.json").write_bytes((tiny_base / "config.json").read_bytes())
    with pytest.raises(RayPrivacyError, match=r"^model.base is '.*': it could not be loaded \(.*\)\.$"):
        write_samples(broken, prompts(BLOCK), CONFIG, CODES, tmp_path / "out", actors=1)
    assert list(tmp_path.iterdir()) == [broken]


def test_what_is_missing_is_said_before_ray_works(tiny_base, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"holds no config\.json: train or save the model first"):
        write_samples(tmp_path / "nowhere", prompts(BLOCK), CONFIG, CODES, tmp_path / "out", actors=1)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match="run pip install 'rayprivacy"):
        write_samples(tiny_base, prompts(BLOCK), CONFIG, CODES, tmp_path / "out", actors=1, engine=ONNX)
    assert list(tmp_path.iterdir()) == []
    assert write_samples(tiny_base, [], CONFIG, CODES, tmp_path / "none", actors=1) == Written(0, {})
    assert pq.read_table(tmp_path / "none").column_names == ["text", "topic", "stars"]


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from rayprivacy.generation.writing import _whole_file

with _whole_file(Path(sys.argv[1]), pa.schema([("text", pa.string())])) as writer:
    writer.write_table(pa.table({"text": ["half"] * 10_000}))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_no_half_file_and_the_next_one_cleans_up(tmp_path):
    out = tmp_path / "synthetic.parquet"
    with (tmp_path / "said").open("w") as said:
        died = fork(["-c", str(out)], KILLED, os.environ, tmp_path, [said.fileno()] * 2).wait()
    assert died == -signal.SIGKILL
    (tmp_path / "said").unlink()
    assert not out.exists()
    assert list(tmp_path.iterdir())
    whole = pa.table({"text": ["whole"] * 10})
    with writing._whole_file(out, whole.schema) as writer:
        writer.write_table(whole)
        assert not out.exists()
    assert pq.read_table(out) == whole
    assert list(tmp_path.iterdir()) == [out]


def test_a_failing_writer_leaves_the_file_that_was_there(tmp_path):
    out, half = tmp_path / "synthetic.parquet", pa.table({"text": ["half"]})
    out.write_bytes(b"an older file")
    with pytest.raises(ValueError, match="schema"), writing._whole_file(out, half.schema) as writer:
        writer.write_table(half.append_column("more", half["text"]))
    assert out.read_bytes() == b"an older file"
    assert list(tmp_path.iterdir()) == [out]


def test_row_groups_do_not_depend_on_how_blocks_arrive(monkeypatch):
    monkeypatch.setattr(writing, "ROW_GROUP", 5)
    blocks = [pa.table({"n": pa.array(range(size), pa.int64())}) for size in (2, 0, 3, 4, 4, 1)]
    groups = list(writing._row_groups(iter(blocks)))
    assert [len(group) for group in groups] == [5, 8, 1]
    assert pa.concat_tables(groups) == pa.concat_tables(blocks)
    assert list(writing._row_groups(iter([]))) == []
