"""What the quickstart costs on an ordinary machine and on a fast one: seconds, CPU seconds and memory, by stage.

    python benchmarks/quickstart.py --json
    python benchmarks/quickstart.py --isa avx2 --recipe jobs/generator/chat.yaml -o privacy.epsilon=3

Each run is a new one, in a folder of its own with a key and a ledger of its own. `avx2` hides the vector instructions
for bfloat16 from oneDNN and from torch, as on most laptops. CPU seconds and memory are those of the command and of all
processes that it starts (Ray's daemons and workers), looked at twice a second: a process that lives shorter is missed.
`peak_rss_gb` counts pages that several processes share once for each of them; `peak_pss_gb` counts them once, and is
what a machine needs to have; it is looked at every two seconds, where Linux tells it. `core_gflops` is what one core
does in float32 just before the run, on a kernel like the trunk's: a shared machine is not always as fast.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

ISAS = {
    "native": {},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
LOOK_SECONDS = 0.5
LOOKS_AT_SHARES = 4  # it takes the kernel some milliseconds for each process


class Watch(threading.Thread):
    """Adds up the CPU seconds and the memory of a process and of its descendants, until it ends.

    Attributes:
        seen: for each look: the time, and the CPU seconds of all processes so far.
        peak_gb: the most memory that was in use at once, shared pages counted for each process.
        peak_shares_gb: the same with shared pages counted once.
    """

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._cpu: dict[tuple[int, float], float] = {}
        self.seen: list[tuple[float, float]] = []
        self.peak_gb = 0.0
        self.peak_shares_gb = 0.0

    def run(self) -> None:
        """Look until the process is gone."""
        while self._look():
            time.sleep(LOOK_SECONDS)

    def _look(self) -> bool:
        memory = 0
        try:
            family = [self._process, *self._process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return False
        for member in family:
            try:
                times, memory = member.cpu_times(), memory + member.memory_info().rss
                self._cpu[member.pid, member.create_time()] = times.user + times.system
            except psutil.Error:
                continue
        self.seen.append((time.time(), sum(self._cpu.values())))
        self.peak_gb = max(self.peak_gb, memory / 1e9)
        if len(self.seen) % LOOKS_AT_SHARES == 0:
            self.peak_shares_gb = max(self.peak_shares_gb, sum(map(_share, family)) / 1e9)
        return self._process.status() != psutil.STATUS_ZOMBIE

    def cpu_at(self, moment: float) -> float:
        """CPU seconds until a moment, as of the last look before it."""
        return next((cpu for seen, cpu in reversed(self.seen) if seen <= moment), 0.0)


def _share(process: psutil.Process) -> int:
    """Bytes of a process, where a page of n processes counts as 1/n; 0 where the kernel does not say."""
    try:
        return int(getattr(process.memory_full_info(), "pss", 0))
    except psutil.Error:
        return 0


def main() -> None:
    arguments = _arguments()
    found = []
    for isa in [arguments.isa] if arguments.isa else ISAS:
        found.append(measure(isa, arguments.recipe, arguments.override))
        print(json.dumps(found[-1]) if arguments.json else _shown(found[-1]), flush=True)


def measure(isa: str, recipe: Path, overrides: list[str]) -> dict[str, Any]:
    """Run a recipe once with some vector instructions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = [f"privacy.ledger=sqlite:///{folder}/ledger.db", f"privacy.key={folder}/key", *overrides]
        speed = _core_gflops(isa)
        work, watch = watched_run(recipe, folder / "run", own, isa)
        return {
            "isa": isa,
            "dtype": yaml.safe_load((folder / "run" / "recipe.yaml").read_text())["model"]["dtype"],
            "core_gflops": speed,
            "work_s": round(work, 1),
            "cpu_s": round(watch.seen[-1][1], 1),
            "peak_rss_gb": round(watch.peak_gb, 2),
            "peak_pss_gb": round(watch.peak_shares_gb, 2),
            **_quality(folder / "run"),
            **_stages(folder / "run", watch),
            **_machine(),
        }


def watched_run(recipe: Path, out: Path, overrides: list[str], isa: str = "native") -> tuple[float, Watch]:
    """Run a recipe, or finish it, in a process of its own: its seconds, and what it used."""
    words = [word for each in overrides for word in ("-o", each)]
    command = [sys.executable, "-m", "rayprivacy.cli", "run", str(recipe), "--out", str(out), "--resume", *words]
    began, log = time.time(), out.with_name(f"{out.name}.log")
    with log.open("w") as said:
        process = subprocess.Popen(command, env=os.environ | ISAS[isa], stdout=said, stderr=subprocess.STDOUT)
        watch = Watch(psutil.Process(process.pid))
        watch.start()
        status = process.wait()
    if status:
        sys.exit(log.read_text())
    watch.join()
    return time.time() - began, watch


def _quality(run: Path) -> dict[str, Any]:
    """Perplexities on held-out users, and the ratios that the method is judged by."""
    heldout = json.loads((run / "metrics.json").read_text())["heldout"].get("perplexity", {})
    shares = {f"student_over_{of}": heldout["student"] / heldout[of] for of in heldout if "student" in heldout}
    return {name: round(value, 4) for name, value in shares.items() if name != "student_over_student"} | {
        "perplexity": {name: round(value, 2) for name, value in heldout.items()}
    }


def _stages(run: Path, watch: Watch) -> dict[str, Any]:
    """Seconds and CPU seconds of each stage."""
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for line in (run / "run.log").read_text().splitlines():
        entry = json.loads(line)
        if entry["event"] == "done":
            name, until = entry["stage"], entry["time"]
            used = watch.cpu_at(until) - watch.cpu_at(until - entry["seconds"])
            seconds[name] = round(seconds.get(name, 0) + entry["seconds"], 1)
            cpu[name] = round(cpu.get(name, 0) + used, 1)
    return {"stages_s": seconds, "stages_cpu_s": cpu}


def _core_gflops(isa: str) -> float:
    command = [sys.executable, str(Path(__file__).with_name("kernels.py"))]
    said = subprocess.run(command, env=os.environ | ISAS[isa], check=True, capture_output=True, text=True).stdout
    return round(json.loads(said)["flops"]["encode float32"] / 1e9, 1)


def _machine() -> dict[str, Any]:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {"machine": model.partition(": ")[2] or platform.machine(), "cores": os.cpu_count()}


def _shown(figures: dict[str, Any]) -> str:
    stages = figures["stages_s"]
    lines = [f"{name:<34}{stages[name]:>8.1f} s {figures['stages_cpu_s'][name]:>8.1f} CPU s" for name in stages]
    plain = [f"{name:<34}{value}" for name, value in figures.items() if not name.startswith("stages")]
    return "\n".join([*plain, *lines, ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object for each run")
    parser.add_argument("--isa", choices=list(ISAS), help="one of the two settings; both when left out")
    parser.add_argument("--recipe", type=Path, default=Path("jobs/seqpate/chat.yaml"))
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of the recipe")
    return parser.parse_args()


if __name__ == "__main__":
    main()
