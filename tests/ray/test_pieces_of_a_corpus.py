"""A corpus whose parts are split, through a real Ray: nothing but the files is another, whatever is lost on the way."""

import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import create_key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus import verify
from rayprivacy.corpus.manifest import part_paths, read_holdout, read_part
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.verify import verify_with_ray
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.methods.generator.method import label_sums, sums_of
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.work.pieces import Bench, work_off

pytestmark = pytest.mark.usefixtures("local_ray")
SMALL = 32 << 20  # a block has 1 MiB then


def test_less_memory_makes_more_files_of_the_same_rows(tmp_path):
    draw = np.random.default_rng(0)
    rows = {
        "user": [f"u{n}" for n in draw.integers(0, 900, 30_000)],
        "text": [f"words {n % 9000} " * 9 for n in range(30_000)],
    }
    rows["topic"] = ["ab"[n % 2] for n in range(30_000)]
    pq.write_table(pa.table(rows), tmp_path / "all.parquet", row_group_size=4000)
    config = CorpusConfig(source=str(tmp_path / "all.parquet"), labels=("topic",), holdout=0.3)
    key_path = tmp_path / "key"
    key = create_key(key_path)
    made = {}
    for name, memory in (("whole", 2 << 30), ("split", SMALL)):
        made[name] = shard_corpus(config, key_path, 1, 1, tmp_path / name, memory=memory)
        verify_with_ray(tmp_path / name, key_path, PrivacyUnit.USER)
    split = tmp_path / "split"
    assert len(part_paths(split, 0)) > 2
    assert not made["whole"].more
    assert made["split"].corpus_digest(key) == made["whole"].corpus_digest(key)
    assert read_part(split, 0).equals(read_part(tmp_path / "whole", 0))
    assert read_holdout(split).equals(read_holdout(tmp_path / "whole"))
    assert shard_corpus(config, key_path, 1, 1, split, memory=2 << 30) == made["split"], "as it lies there"

    codes = Codes(CodesConfig(values={"topic": ("a", "b")}), ("topic",))
    mechanism = HistogramMechanism(cells=codes.cells, sigma=5.0)
    expected = sums_of(read_part(tmp_path / "whole", 0), codes, mechanism)
    assert label_sums(split, 1, codes, mechanism).reveal().tolist() == expected.tolist()
    assert expected.sum() > 0

    assert not [path for path in split.iterdir() if path.name.startswith(".")]
    part_paths(split, 0)[2].unlink()
    with pytest.raises(ShardError, match=r"part-00000-00002\.parquet is missing"):
        verify_with_ray(split, key_path, PrivacyUnit.USER)
    create_key(tmp_path / "other")
    with pytest.raises(ShardError, match="puts elsewhere"):
        verify_with_ray(tmp_path / "whole", tmp_path / "other", PrivacyUnit.USER)
    assert load_key(key_path).digest("x") == key.digest("x")


def test_what_a_killed_process_had_claimed_is_done_again_and_nothing_else(tmp_path):
    def dies_once(piece):
        if piece == 3 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with (tmp_path / f"done-{piece}").open("a") as file:
            file.write("x")
        return {"square": piece * piece}

    bench = Bench(tmp_path / "bench")
    bench.offer(9)
    work_off(bench, dies_once, "squaring", verify.SEAL)
    assert [report["square"] for report in bench.reports()] == [piece * piece for piece in range(9)]
    assert (tmp_path / "died").exists()
    assert {path.read_text() for path in tmp_path.glob("done-*")} == {"x"}
