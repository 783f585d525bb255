"""What benchmarks/questions.py measures of the whole command, in processes of its own: growth, and peaks of memory."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from cpu_time import timed
from questions_parts import Bench, goal, scratch
from squad import passages, splits

from rayprivacy.questions.passages import sentences, windows
from rayprivacy.questions.settings import parse_questions
from rayprivacy.runs.files import overridden
from rayprivacy.runs.questions_plan import question_stages

GB = 1e9 / (1 << 20)  # in MiB
EVERY_S = 0.1
KINDS = {"resident": "VmRSS", "own": "RssAnon"}  # of memory: with pages of files, which processes share, and without
Peaks = dict[str, int]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class Watch:
    """Memory of the command and of its actors while it runs, by the stage that it is at."""

    def __init__(self, stages: list[str]) -> None:
        self.driver: Peaks = {}
        self.actors: dict[str, Peaks] = defaultdict(dict)
        self._stages, self._done = stages, 0

    def run(self, words: list[str]) -> None:
        command = [sys.executable, "-m", "rayprivacy.cli", *words]
        with subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            reader = threading.Thread(target=self._read, args=(process.stderr,))
            reader.start()
            while process.poll() is None:
                self._look(psutil.Process(process.pid))
                time.sleep(EVERY_S)
            reader.join()
        if process.returncode:
            raise SystemExit(f"the command ended with {process.returncode}: {self._said}")

    def _read(self, lines: Any) -> None:
        """Follow the stages, each of which is told with its seconds when it is done."""
        for line in lines:
            self._said = line
            if self._done < len(self._stages) and re.match(rf" *{self._stages[self._done]} +[0-9.]+ s$", line):
                self._done += 1

    def _look(self, process: psutil.Process) -> None:
        stage = self._stages[min(self._done, len(self._stages) - 1)]
        try:
            _raise(self.driver, process.pid)
            for each in process.children(recursive=True):
                if each.name().startswith("ray::"):
                    _raise(self.actors[stage], each.pid)
        except (psutil.Error, OSError):
            return


def _raise(peaks: Peaks, process: int) -> None:
    """Raise peaks to what the kernel says of a process, in MiB; nothing where it has ended."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        said, _, value = line.partition(":")
        for name in (name for name, kind in KINDS.items() if kind == said):
            peaks[name] = max(peaks.get(name, 0), int(value.split()[0]) // 1024)


def _measured(texts: list[str], keys: dict[str, Any], work: Path, actors: int) -> dict[str, Any]:
    """One run of the command."""
    work.mkdir()
    pq.write_table(pa.table({"text": texts}), work / "texts.parquet")
    settings = overridden({}, {f"questions.{name}": value for name, value in keys.items()})
    (work / "keys.yaml").write_text(json.dumps(settings))  # which is YAML too
    words = ["questions", "--public", str(work / "texts.parquet"), "--recipe", str(work / "keys.yaml")]
    watch = Watch([stage.name for stage in question_stages(parse_questions(settings))])
    wall, cpu_s = timed(lambda: watch.run([*words, "--out", str(work / "out"), "--actors", str(actors)]))
    said = json.loads((work / "out" / "stages.json").read_text())
    return {
        "counts": said["counts"],
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu_s, 1),
        "driver_mib": watch.driver,
        "actors_mib": watch.actors,
        "seconds": said["seconds"],
    }


def _public(bench: Bench, work: Path) -> dict[str, Any]:
    """Files to learn from, and the keys that name them."""
    parts = splits(bench.data)
    pq.write_table(pa.Table.from_pylist(parts.pairs), work / "pairs.parquet")
    pq.write_table(pa.Table.from_pylist(parts.annotations[:60]), work / "annotations.parquet")
    return {
        "pairs.source": str(work / "pairs.parquet"),
        "pairs.evidence": "sentence",
        "value.annotations": str(work / "annotations.parquet"),
        "keep.by": "measured",
        "retriever.base": "static",
    }


def growth(bench: Bench) -> dict[str, Any]:
    """The command on some passages and on four times as many, with clozes."""
    few = bench.size(2000, 100)
    with scratch(bench) as work:
        texts = _texts(bench)
        runs = [_measured(texts[: few * times], {}, work / f"{times}", actors=1) for times in (1, 4)]
    less, more = runs
    goals = [
        goal("CPU of four times as many passages", more["cpu_s"] / less["cpu_s"], at_most=4.2),
        goal("the driver's peak with four times as many", _ratio(more, less, "resident"), at_most=1.1),
        goal("the same of its own memory", _ratio(more, less, "own"), at_most=1.1),
    ]
    return {"runs": runs, "goals": goals}


def _ratio(more: dict[str, Any], less: dict[str, Any], kind: str) -> float:
    return float(more["driver_mib"][kind] / less["driver_mib"][kind])


def _texts(bench: Bench) -> list[str]:
    """Distinct texts of three sentences each, of SQuAD's articles and of Wikipedia."""
    parts = splits(bench.data)
    long = [*(row["passage"] for row in parts.public), *passages(bench.rows[1])]
    pieces = [text[start:end] for text in long for start, end in sentences(text)]
    return [*dict.fromkeys(" ".join(own) for own in windows(pieces, 3) if sum(len(each.split()) for each in own) < 100)]


def peaks(bench: Bench) -> dict[str, Any]:
    """Memory of the command with the packaged models; few steps, which need as much as many."""
    with scratch(bench) as work:
        keys = _public(bench, work) | {"asker.steps": bench.size(4, 2), "judge.encoder": "minilm-l6"}
        keys |= {"judge.epochs": 1, "value.iterations": 20, "value.estimators": 1}
        run = _measured(_texts(bench)[: bench.size(24, 12)], keys, work / "run", actors=1)
    goals = []
    for kind in KINDS:
        actors = {stage: peak.get(kind, 0) / GB for stage, peak in run["actors_mib"].items()}
        asking = max(actors.get(name, 0.0) for name in ("questions", "likelihoods"))
        goals += [
            goal(f"the driver's peak, GB {kind}", run["driver_mib"][kind] / GB, at_most=1.5),
            goal(f"an actor with the judge, GB {kind}", actors.get("judgements", 0.0), at_most=1.2),
            goal(f"an actor with the asker, GB {kind}", asking, at_most=1.5),
        ]
    return run | {"goals": goals}
