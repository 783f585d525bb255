"""Peak memory, rate and growth of sharding and verifying a corpus, on this machine.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --rows 20000000 --users 200000 --old ../before --json

The corpus is synthetic: public words in random order, by users who are all equally talkative, in one Parquet file. It
is sharded and verified once with half of the rows and once with all of them, by a Ray of two CPUs; against it stands
polars' group-by of the same file, which does a part of the work: it reads all rows and puts those of a user together.
It neither bounds what a user contributes nor orders records by a key, writes nothing and checks nothing. With `--old`,
a checkout of another commit, its code does the same work on the same file, in turn.

Peak memory is what the kernel says of each process (VmHWM), read five times a second, for the driver and for each of
Ray's workers. CPU seconds are those of all processes of Ray and the driver together. Each step runs in a process of its
own, so that none inherits another one's memory.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from cpu_time import in_a_process, timed

from rayprivacy.corpus.public import load_prompts

GROUP_ROWS, WORDS = 250_000, 12
SHARDS, PER_PART = 1000, 50
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where the corpus and its shards are written; a temporary folder")
    parser.add_argument("--old", type=Path, help="a checkout of another commit, which is measured beside this one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    work = Path(tempfile.mkdtemp(dir=arguments.work))
    try:
        figures = measure(work, arguments.rows, arguments.users, arguments.cpus, arguments.old)
    finally:
        shutil.rmtree(work)
    print(json.dumps(figures, indent=1) if arguments.json else _table(figures))


def measure(work: Path, rows: int, users: int, cpus: int, old: Path | None = None) -> dict[str, Any]:
    """All figures, of half of the rows and of all."""
    runs = []
    for size in (rows // 2, rows):
        in_a_process(write_corpus, work / "corpus.parquet", size, users)
        bytes_ = (work / "corpus.parquet").stat().st_size
        runs.append(
            {"rows": size, "users": users, "file_mb": round(bytes_ / MIB)}
            | {"polars": in_a_process(group_by, work / "corpus.parquet"), "sharding": in_a_process(shard, work, cpus)}
            | ({"old": _of(old, work, cpus)} if old else {})
        )
    half, whole = (run["sharding"] for run in runs)
    return {
        "runs": runs,
        "growth_wall": round(whole["wall_s"] / half["wall_s"], 2),
        "growth_cpu": round(whole["cpu_s"] / half["cpu_s"], 2),
        **({"of_old_cpu": round(whole["cpu_s"] / runs[1]["old"]["cpu_s"], 3)} if old else {}),
        "rows_per_cpu_s": round(rows / whole["cpu_s"]),
        "polars_rows_per_cpu_s": round(rows / runs[1]["polars"]["cpu_s"]),
        "of_polars": round(runs[1]["polars"]["cpu_s"] / whole["cpu_s"], 3),
        "peak_mb": {"driver": whole["driver_mb"], "largest worker": max(whole["workers_mb"])},
        "machine": {"cores": multiprocessing.cpu_count(), "load_average": os.getloadavg()[0]},
    }


def write_corpus(path: Path, rows: int, users: int) -> None:
    """One Parquet file of so many rows, row group by row group."""
    words = np.array(sorted({word for line in load_prompts(None) for word in line.split()}))
    draw, schema = np.random.default_rng(0), pa.schema([("user", pa.string()), ("text", pa.large_string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, rows, GROUP_ROWS):
            size = min(GROUP_ROWS, rows - start)
            names = [f"user-{user}" for user in draw.integers(0, users, size)]
            texts = [" ".join(chosen) for chosen in words[draw.integers(0, len(words), (size, WORDS))]]
            writer.write_table(pa.table({"user": names, "text": texts}, schema=schema))


def group_by(path: Path) -> dict[str, float]:
    """Polars puts the texts of each user together."""
    import polars as pl  # in this process alone: its threads would be in the way of the others

    began, cpu = time.perf_counter(), time.process_time()
    found = pl.scan_parquet(path).group_by("user").agg(pl.col("text")).collect(engine="streaming")
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert len(found)
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mb": _peak(psutil.Process())}


def shard(work: Path, cpus: int) -> dict[str, Any]:
    """Shard and verify, with a new key."""
    import ray

    from rayprivacy.core.keys import create_key
    from rayprivacy.core.units import PrivacyUnit
    from rayprivacy.corpus.settings import CorpusConfig
    from rayprivacy.corpus.shards import shard_corpus
    from rayprivacy.corpus.verify import verify_with_ray

    config, key, out = CorpusConfig(source=str(work / "corpus.parquet")), work / "key", work / "shards"
    key.unlink(missing_ok=True)
    create_key(key)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    ray.get(ray.remote(lambda: 0).remote())  # a worker is there
    try:
        with _watched() as peaks:
            sharding = timed(lambda: shard_corpus(config, key, SHARDS, PER_PART, out))
            verifying = timed(lambda: verify_with_ray(out, key, PrivacyUnit.USER))
        files = len(list(out.glob("*.parquet")))
    finally:
        ray.shutdown()
        shutil.rmtree(out, ignore_errors=True)
    return {
        "wall_s": round(sharding[0] + verifying[0], 2),
        "cpu_s": round(sharding[1] + verifying[1], 2),
        "sharding_cpu_s": round(sharding[1], 2),
        "verifying_cpu_s": round(verifying[1], 2),
        "files": files,
        "driver_mb": peaks.pop(os.getpid()),
        "workers_mb": sorted(peaks.values()),
    }


@contextmanager
def _watched() -> Iterator[dict[int, int]]:
    """The peak memory of this process and of Ray's workers below it, by process, in MiB."""
    peaks: dict[int, int] = {os.getpid(): 0}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    if process.pid in peaks or process.name().startswith("ray::"):
                        peaks[process.pid] = _peak(process)
                except (psutil.Error, OSError):
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(line.split()[1]) // 1024


def _of(checkout: Path, work: Path, cpus: int) -> Any:
    """What `shard` measures of the package in another checkout, in a process that finds it first."""
    code = "import json, sys, scale; print(json.dumps(scale.shard(scale.Path(sys.argv[1]), int(sys.argv[2]))))"
    path = os.pathsep.join(map(str, [checkout.absolute(), Path(__file__).parent]))
    command = [sys.executable, "-c", code, str(work), str(cpus)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, cwd=checkout, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _table(figures: dict[str, Any]) -> str:
    lines = [f"{'rows':>12} {'polars CPU s':>13} {'ours CPU s':>11} {'wall s':>7} {'driver MB':>10} {'worker MB':>10}"]
    for run in figures["runs"]:
        ours = run["sharding"]
        lines.append(
            f"{run['rows']:>12,} {run['polars']['cpu_s']:>13} {ours['cpu_s']:>11} {ours['wall_s']:>7}"
            f" {ours['driver_mb']:>10} {max(ours['workers_mb']):>10}"
        )
    shares = f"rows per CPU second: {figures['rows_per_cpu_s']:,}, polars {figures['polars_rows_per_cpu_s']:,}"
    return "\n".join([*lines, f"{shares}; time grows by {figures['growth_wall']}"])


if __name__ == "__main__":
    main()
