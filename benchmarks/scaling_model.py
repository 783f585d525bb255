"""A simulation of one SeqPATE run on 10^9 records of 10^6 users, 10^4 teachers and 64 nodes, from measured costs.

Each stage is one of three things, as the code has it today:

    tasks     pieces of work on slots (a core each); a slot takes the next piece when it is free
    driver    one thread of the driver, which nothing helps: its share has a column of its own
    bytes     what crosses the shared disk, at its bandwidth

Stages follow each other. A piece takes its mean times a log-normal factor with mean 1 (stragglers). A node dies after
an exponential time; what its slots were doing is lost and goes back into the queue, and it is replaced after a while. A
piece is what the code resumes by: a share of the source, a file, a piece of a part's features, a
stack. What a death costs beyond that (a driver that dies) is not in the model.

Costs come from `scaling_costs.py`: CPU seconds on this machine. `Setting` holds everything assumed.
"""

import heapq
import random
import statistics
from dataclasses import dataclass, replace

SEEDS = 20


@dataclass(frozen=True)
class Setting:
    """What is assumed, not measured: the work, and the cluster."""

    records: float = 1e9
    users: float = 1e6
    teachers: int = 10_000
    stack: int = 50  # teachers in a part file: the default
    records_per_user: int = 100  # the default bound: a tenth of the 1,000 that a user has here
    holdout: float = 0.1
    queries: int = 2000
    block: int = 10  # teachers that answer together
    max_rows: int = 64  # of a user, of 64 positions each: the defaults
    max_steps: int = 64
    batch: int = 64
    source_files: int = 4096
    nodes: int = 64
    cores: int = 32
    disk: float = 20e9  # bytes a second of the shared file system, all nodes together
    range_bytes: float = 64 << 20  # of the rows of one file: the default of 2 GB for a process
    gpu_positions: float = 0.0  # positions a second of one GPU in each node; 0: the trunk runs on the cores
    straggling: float = 0.3  # standard deviation of the logarithm of a piece's time
    mtbf_days: float = 30.0  # of one node
    repair: float = 600.0

    @property
    def parts(self) -> int:
        """Part files."""
        return -(-self.teachers // self.stack)

    @property
    def kept(self) -> float:
        """Records after the bound, held-out users' included."""
        return min(self.records, self.users * self.records_per_user)


@dataclass(frozen=True)
class Stage:
    """One stage: pieces of so many seconds on so many slots, and seconds that more slots do not shorten."""

    name: str
    pieces: tuple[float, ...] = ()
    slots: int = 1
    fixed: float = 0.0
    driver: float = 0.0  # of the fixed ones, those that one thread of the driver works


def report(costs: dict[str, float]) -> str:
    """Every table of the simulation, as Markdown."""
    base = Setting()
    lines = [f"Minutes of each stage, medians of {SEEDS} draws:", ""]
    settings = {"stack 50, the default": base, "..., MTBF 1 day": replace(base, mtbf_days=1)}
    settings |= {"stack 5": replace(base, stack=5)}
    lines += _table(settings, costs)
    lines += [
        "",
        "The trunk on one GPU in each node, in minutes; positions a second of a GPU are assumed:",
        "",
    ]
    rates = (1e4, 1e5, 1e6)
    lines += _row(["positions/s", "features", "whole run"], head=True)
    for rate in rates:
        with_gpu = replace(base, gpu_positions=rate)
        found = dict(_minutes(with_gpu, costs))
        lines += _row([f"{rate:,.0f}", f"{found['features']:.1f}", f"{sum(found.values()):.1f}"])
    lines += ["", "The driver's share, with the default stack, in seconds:", "", *_shares(base, costs)]
    return "\n".join([*lines, "", "What must be held:", "", *_sizes(base, costs)])


def _shares(setting: Setting, costs: dict[str, float]) -> list[str]:
    lines = _row(["stage", "the driver, s"], head=True)
    found = stages(setting, costs)
    for stage in found:
        lines += _row([stage.name, f"{stage.driver:.2f}"])
    return lines + _row(["all", f"{sum(stage.driver for stage in found):.2f}"])


def _table(settings: dict[str, Setting], costs: dict[str, float]) -> list[str]:
    columns = {name: dict(_minutes(setting, costs)) for name, setting in settings.items()}
    first = next(iter(columns.values()))
    lines = _row(["stage", *columns], head=True)
    for stage in first:
        lines += _row([stage, *(f"{column[stage]:.1f}" for column in columns.values())])
    return lines + _row(["all", *(f"{sum(column.values()):.1f}" for column in columns.values())])


def _row(cells: list[str], *, head: bool = False) -> list[str]:
    line = "| " + " | ".join(cells) + " |"
    return [line, "|---|" + "---:|" * (len(cells) - 1)] if head else [line]


def _minutes(setting: Setting, costs: dict[str, float]) -> list[tuple[str, float]]:
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        draw = random.Random(seed)
        for stage in stages(setting, costs):
            found.setdefault(stage.name, []).append(_seconds(stage, setting, draw) / 60)
    return [(name, statistics.median(minutes)) for name, minutes in found.items()]


def stages(setting: Setting, costs: dict[str, float]) -> list[Stage]:
    """The stages of a run, in order."""
    rows, kept, cores = setting.records, setting.kept, setting.nodes * setting.cores
    teaching, disk = 1 - setting.holdout, setting.disk
    positions = teaching * _positions(setting, costs)
    reading = rows * (1 / costs["corpus_read_rows_per_s"] + 1 / costs["corpus_place_rows_per_s"])
    # Blocks are a sample of all users: bounding them before the shuffle drops next to nothing here.
    spilled, features = rows * costs["corpus_shuffle_bytes_per_row"], positions * costs["feature_bytes_per_position"]
    files = _files(setting, costs)
    naming = teaching * kept / costs["name_rows_per_s"]
    lines = positions / costs["positions_per_chunk"] * costs["line_s"]  # every process learns them all
    trunk, slots = costs["trunk_positions_per_s"], cores
    if setting.gpu_positions:
        trunk, slots = setting.gpu_positions, setting.nodes
    pieces = -(-4 * slots // setting.parts) * setting.parts
    named = 2 * naming / setting.parts  # a piece reads its part, and names it to see what is missing and to encode it
    own = setting.teachers / _pieces(setting, cores)  # teachers of a piece of training
    taught = own * (
        positions / setting.teachers / costs["feature_read_positions_per_s"]
        + naming / setting.teachers
        + setting.max_steps * setting.batch / costs["train_tokens_per_s"]
    )
    blocks = -(-setting.teachers // setting.block)
    pairs = setting.queries * setting.block / costs["votes_pairs_per_s"]
    start = costs["load_base_s"] + lines
    stored = kept * costs["corpus_stored_bytes_per_row"]
    report = costs["driver_s_per_file"]
    checked = kept / costs["corpus_verify_rows_per_s"]
    return [
        Stage("reading and placing", _equal(reading, setting.source_files), cores, spilled / disk),
        _with_driver("finishing files", _equal(rows / costs["corpus_finish_rows_per_s"], files), cores,
                     (spilled + stored) / disk, report * (files + setting.source_files)),
        _with_driver("checking files", _equal(checked, files), cores, stored / disk, report * files),
        Stage("looking for cached groups", _equal(naming, min(cores, setting.parts)), cores, lines),
        Stage("features", _equal(positions / trunk + named * pieces, pieces), slots, start + features / disk),
        Stage("teachers", (taught,) * _pieces(setting, cores), cores, start + features / disk),
        _with_driver("votes", (pairs,) * blocks, cores, 8 * 3 * costs["add_sum_s"], 8 * costs["add_sum_s"]),
        _with_driver("ledger", (), 1, 0.0, 4 * costs["ledger_call_s"]),
        _with_driver("the non-private bound", (), 1, 0.0, naming / setting.parts + lines),
    ]  # fmt: skip


def _pieces(setting: Setting, actors: int) -> int:
    """Pieces of training: four for each actor, and at least a teacher in each."""
    return -(-setting.teachers // -(-setting.teachers // (4 * actors)))


def _with_driver(name: str, pieces: tuple[float, ...], slots: int, fixed: float, driver: float) -> Stage:
    return Stage(name, pieces, slots, fixed + driver, driver)


def _files(setting: Setting, costs: dict[str, float]) -> int:
    """Files of the sharded corpus: of a size, at least one for each part."""
    size = setting.records * costs["corpus_shuffle_bytes_per_row"]
    own = -(-size * (1 - setting.holdout) // setting.parts // setting.range_bytes) * setting.parts
    return int(max(setting.parts, own) + max(1, -(-size * setting.holdout // setting.range_bytes)))


def _positions(setting: Setting, costs: dict[str, float]) -> float:
    """Row positions that the trunk sees, padding included, were all users teaching."""
    own = setting.records_per_user * costs["positions_per_record"]
    return setting.users * min(setting.max_rows * 64, own)


def _equal(total: float, pieces: int) -> tuple[float, ...]:
    return (total / pieces,) * pieces


def _seconds(stage: Stage, setting: Setting, draw: random.Random) -> float:
    return _makespan(stage, setting, draw) + stage.fixed


def _makespan(stage: Stage, setting: Setting, draw: random.Random) -> float:
    """When the last piece is done, on slots that are spread over nodes that die."""
    fate = [draw.expovariate(1 / (setting.mtbf_days * 86_400)) for _ in range(setting.nodes)]
    slots = [(0.0, number % setting.nodes) for number in range(stage.slots)]
    queue, end = list(stage.pieces), 0.0
    while queue:
        start, node = heapq.heappop(slots)
        while fate[node] + setting.repair <= start:  # it died while this slot was idle, and is back
            fate[node] += setting.repair + draw.expovariate(1 / (setting.mtbf_days * 86_400))
        if fate[node] <= start:
            heapq.heappush(slots, (fate[node] + setting.repair, node))
            continue
        spread = setting.straggling
        seconds = queue[-1] * draw.lognormvariate(-spread * spread / 2, spread)
        if start + seconds > fate[node]:
            heapq.heappush(slots, (fate[node] + setting.repair, node))
            continue  # the piece stays in the queue
        queue.pop()
        end = max(end, start + seconds)
        heapq.heappush(slots, (start + seconds, node))
    return end


def _sizes(setting: Setting, costs: dict[str, float]) -> list[str]:
    positions, rows = (1 - setting.holdout) * _positions(setting, costs), setting.records
    files = _files(setting, costs)
    chunks = positions / costs["positions_per_chunk"]
    facts = {
        "rows on their way, on the shared disk": rows * costs["corpus_shuffle_bytes_per_row"],
        "memory of a process that reads, finishes or checks (measured at 2 * 10^7 rows)": costs["sharding_worker_mb"]
        * 2**20,
        "memory of the driver meanwhile (measured at 2 * 10^7 rows)": costs["sharding_driver_mb"] * 2**20,
        "cached features": positions * costs["feature_bytes_per_position"],
        "teachers on disk": setting.teachers * costs["teacher_bytes"],
        "memory of 32 actors of one node (base and libraries)": setting.cores * costs["actor_mb"] * 1e6,
        "the driver's list of teacher ids": setting.teachers * costs["driver_state_bytes_per_teacher"],
    }
    lines = _row(["what", "size"], head=True)
    for name, size in facts.items():
        lines += _row([name, _bytes(size)])
    lines += _row(["files of the sharded corpus", f"{files:,}"])
    return lines + _row(["chunk files of features, with a line each", f"{chunks:,.0f}"])


def _bytes(size: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
