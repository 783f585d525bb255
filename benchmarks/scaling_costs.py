"""What one core takes for each kind of work, measured in one process with one thread: the input of the simulation.

CPU seconds, not wall seconds: other work shares the machine. `corpus_*` are of the synthetic corpus of the sharding
arms (12 words a record), `trunk_*` of SmolLM2-135M on the CPU, in rows of 64 tokens.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from cpu_time import peak_mb

from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import digest_file, digest_json
from rayprivacy.corpus.layout import FILE, Layout, finish, prepare
from rayprivacy.corpus.manifest import FileEntry, ShardManifest, read_part, write_part
from rayprivacy.corpus.phrases import tidy
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import locate, read_pieces
from rayprivacy.corpus.users import Dropped
from rayprivacy.corpus.verify import verify_shards
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import Encoded, encode
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import Chunks, FeatureStore
from rayprivacy.teachers.encoding import CHUNK_POSITIONS, groups_of
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.votes import PartialSum, VoteTotal

RESULTS = Path(__file__).parent / "results"
TRUNK_RECORDS, READS = 96, 20
REPORTS = 500
LINES, GROUPS_OF_A_CHUNK = 1000, 19  # a user of 100 records of 12 words fills a nineteenth of a chunk


def read(corpus: CorpusConfig) -> Iterator[pa.Table]:
    """The pieces of the corpus, in a plain loop."""
    for path in locate(corpus).paths:
        with pa.OSFile(path) as stream:
            yield from read_pieces(stream, "parquet", corpus.columns)


def placed(pieces: Iterable[pa.Table], key: Key, layout: Layout) -> Iterator[pa.Table]:
    """Clean, bounded rows with the number of their part."""
    for piece in pieces:
        yield prepare(tidy(piece, key, layout, None)[0], key, layout)[0]


def gathered(tables: Iterable[pa.Table]) -> dict[int, pa.Table]:
    """The rows of each part: the shuffle of one process."""
    found: dict[int, list[pa.Table]] = defaultdict(list)
    for table in tables:
        rows = table.sort_by(FILE)
        parts, starts = np.unique(rows[FILE].to_numpy(), return_index=True)
        for part, start, end in zip(parts, starts, [*starts[1:], len(rows)], strict=True):
            found[int(part)].append(rows.slice(start, end - start))
    return {part: pa.concat_tables(rows) for part, rows in found.items()}


def costs(work: Path, corpus: CorpusConfig, key_path: Path, layout: Layout) -> dict[str, float]:
    """Costs per unit of work.

    Args:
        work: a folder for scratch files.
        corpus: what is sharded.
        key_path: the key.
        layout: into which shards.
    """
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    key = load_key(key_path)
    return {
        **_corpus(work / "shards", corpus, key, layout),
        "driver_s_per_file": _driver(),
        **_trunk(work, key_path, layout),
        "add_sum_s": _add(2000, 50),
        "driver_state_bytes_per_teacher": 8 + 28,  # an int in a tuple: the list of their ids is all that comes home
        **_recorded(),
    }


def _recorded() -> dict[str, float]:
    """What other benchmarks measured on this machine, with SmolLM2-135M."""
    teachers = json.loads((RESULTS / "teachers.json").read_text())
    scale = json.loads((RESULTS / "scale.json").read_text())
    sqlite = json.loads((RESULTS / "ledger.json").read_text().splitlines()[0])
    return {
        "train_tokens_per_s": round(teachers["train_tokens_per_s"] / teachers["cores"]),
        "votes_pairs_per_s": round(teachers["votes_per_s"] / teachers["cores"]),
        "teacher_bytes": teachers["bytes_per_teacher"],
        "sharding_worker_mb": scale["peak_mb"]["largest worker"],
        "sharding_driver_mb": scale["peak_mb"]["driver"],
        "ledger_call_s": sqlite["reserve_commit_p50_ms"] / 1000,
    }


def _driver() -> float:
    """Seconds that the driver takes to read what it is told of one file of the corpus."""
    entry = FileEntry(0, "part-00000.parquet", 1, 1, "0" * 64, "0" * 64)
    told = [json.dumps({"file": 0, "dropped": asdict(Dropped()), "entry": asdict(entry)})] * REPORTS
    return round(_cpu(lambda: [json.loads(report) for report in told]) / REPORTS, 9)


def _corpus(out: Path, corpus: CorpusConfig, key: Key, layout: Layout) -> dict[str, float]:
    pieces, tables, entries = [], [], []
    reading = _cpu(lambda: pieces.extend(read(corpus)))
    placing = _cpu(lambda: tables.extend(placed(pieces, key, layout)))
    parts, rows = gathered(tables), sum(map(len, pieces))
    out.mkdir(parents=True, exist_ok=True)

    def finished() -> None:
        for part, table in sorted(parts.items()):
            entries.append(write_part(finish(table, part, key, layout)[0], part, key, out))

    finishing = _cpu(finished)
    holdout, *own = entries
    config = layout.config
    manifest = ShardManifest("", layout.shards, layout.per_part, config.max_records_per_user, config.holdout,
                             tuple(own), holdout, Dropped())  # fmt: skip
    manifest.write(out)
    verifying = _cpu(lambda: verify_shards(out, key))
    stored = sum((out / entry.file).stat().st_size for entry in entries)
    digesting = _cpu(lambda: [digest_file(out / entry.file) for entry in entries])
    return {
        "corpus_read_rows_per_s": round(rows / reading),
        "corpus_place_rows_per_s": round(rows / placing),
        "corpus_finish_rows_per_s": round(rows / finishing),
        "corpus_verify_rows_per_s": round(manifest.rows / verifying),
        "corpus_shuffle_bytes_per_row": round(sum(table.nbytes for table in tables) / rows, 1),
        "corpus_stored_bytes_per_row": round(stored / manifest.rows, 1),
        "digest_bytes_per_s": round(stored / digesting),
    }


def _trunk(work: Path, key_path: Path, layout: Layout) -> dict[str, float]:
    """One thread of the trunk, of naming groups, and of reading states and their journal."""
    before, began = peak_mb(), time.perf_counter()
    backbone, teachers = load_backbone(ModelConfig()), TeachersConfig()
    loading = time.perf_counter() - began
    table = read_part(work / "shards", 0)
    used = [backbone.document(text, teachers.max_tokens) for text in table["text"].to_pylist()[:TRUNK_RECORDS]]
    parts = [encode(backbone, used[:8], teachers.row_tokens, TRUNK_RECORDS)]
    seconds = _cpu(lambda: parts.append(encode(backbone, used, teachers.row_tokens, TRUNK_RECORDS)))
    encoded, store, names = parts[-1], FeatureStore(work / "features", "costs", key_path), []
    positions, tokens = encoded.ids.numel(), sum(map(len, used))
    store.prepare()

    def name() -> None:
        groups = groups_of(read_part(work / "shards", 0), layout.unit, range(layout.per_part))
        names.extend(store.name(own) for shard in groups for own in shard)

    naming = _cpu(name)
    store.write(dict.fromkeys(names[:READS], encoded))
    return {
        "trunk_tokens_per_s": round(tokens / seconds),
        "trunk_positions_per_s": round(positions / seconds),
        "tokens_per_record": round(tokens / len(used), 1),
        "positions_per_record": round(positions / len(used), 1),
        "positions_per_chunk": CHUNK_POSITIONS,
        "line_s": _line(work, key_path),
        "feature_bytes_per_position": 2 * backbone.width + 8,
        "feature_read_positions_per_s": round(READS * positions / _cpu(lambda: _read_back(store, names[:READS]))),
        "name_rows_per_s": round(len(table) / naming),
        "load_base_s": round(loading, 2),
        "actor_mb": round(peak_mb()),
        "base_mb": round(peak_mb() - before),
    }


def _line(work: Path, key_path: Path) -> float:
    """To learn a line of the journal of features, which names as many groups as the users of 100 records fill."""
    folder, states = work / "lines", Encoded(torch.zeros(1, 8).long(), torch.zeros(1, 8).long(), torch.zeros(1, 8, 8))
    folder.mkdir()
    writer, reader = (Chunks(folder, load_key(key_path), None) for _ in range(2))
    for number in range(LINES):
        writer.write({digest_json([number, group]): states for group in range(GROUPS_OF_A_CHUNK)})
    return round(_cpu(reader.scan) / LINES, 6)


def _read_back(store: FeatureStore, names: list[str]) -> None:
    for name in names:
        store.read([name])[0].hidden.float().sum()


def _add(queries: int, candidates: int) -> float:
    sums = np.ones((queries, candidates), np.int64)
    partials = [PartialSum((number,), sums) for number in range(200)]
    total = VoteTotal(queries, candidates)
    return round(_cpu(lambda: [total.add(partial) for partial in partials]) / len(partials), 6)


def _cpu(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
