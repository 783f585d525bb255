"""What is made of the frontier's rows: their tables, a plot for docs/frontier.md, samples, and the rows of `plan`.

    python benchmarks/frontier_page.py

reads `frontier.json`, `seqpate_table.json`, `seqpate_own_texts.json` and `dpsgd_table.json` of benchmarks/results, and
writes frontier.md and frontier_samples.md there, docs/images/frontier.svg, and
rayprivacy/runs/frontier.json, which `rayprivacy plan` quotes. Rows of several seeds and keys become their mean.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frontier import OF_THE_RECIPE, ON_GPU, best_public
from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE, SAMPLES = RESULTS / "frontier.md", RESULTS / "frontier_samples.md"
PLOT, PACKAGED = ROOT / "docs" / "images" / "frontier.svg", ROOT / "rayprivacy" / "runs" / "frontier.json"
USERS = {"chat": 1315, "reviews": 4143, "europarl": 2696}  # of the public corpora, held-out ones among them
FIGURES = {
    "MAUVE": "mauve", "precision": "precision", "recall": "recall", "Frechet": "frechet",
    "topic TV": "topic_total_variation", "length TV": "length_total_variation", "words": "words_mean",
    "perplexity": "perplexity", "distinct-2": "distinct_2", "accuracy": "accuracy",
}  # fmt: skip
PLOTTED = ("MAUVE", "recall", "topic TV", "length TV")
SEQPATE = {  # rows of seqpate_table.json that belong to the frontier, and minutes of a whole run (results/README.md)
    "default": ("head student", 25.0),
    "student_lora": ("student.kind lora", 27.0),
}
CORES = 2  # that minutes are of; rows on a GPU have none
BOUND = 1e5  # epsilon of rows with next to no noise, which are no advice
Rows = list[dict[str, Any]]


def groups(rows: Rows) -> dict[tuple[str, str, str, float], Rows]:
    """Rows by corpus, method, lever and epsilon, in that order; those of a group differ in their seeds or keys."""
    found: dict[tuple[str, str, str, float], Rows] = {}
    for row in sorted(rows, key=lambda row: (row["corpus"], row["method"] != "seqpate", row["lever"] != "shipped")):
        found.setdefault((row["corpus"], row["method"], row["lever"], float(row["epsilon"])), []).append(row)
    return dict(sorted(found.items(), key=lambda each: (each[0][0], each[0][1] != "seqpate", each[0][2], each[0][3])))


def mean(rows: Rows, *path: str) -> float | None:
    """Mean of a figure over the rows that have it."""
    found = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value.get(name) if value is not None else None
        found += [value] if value is not None else []
    return statistics.mean(found) if found else None


def table(rows: Rows) -> str:
    """The rows as a table, with other real users below those of each corpus."""
    read = "held-out perplexity: base, to best public model, to released"
    head = ["corpus", "method", "lever", "epsilon", "runs", read, "gap closed", *FIGURES, "CPU min"]
    lines = [_line(head), _line(["---"] * 4 + ["---:"] * (len(head) - 4))]
    by_group = groups(rows)
    for corpus in dict.fromkeys(key[0] for key in by_group):
        own = {key: found for key, found in by_group.items() if key[0] == corpus}
        lines += [_line(_cells(key, found)) for key, found in own.items()]
        every = [row for found in own.values() for row in found]
        others = [_shown(mean(every, "other_real_users", name)) for name in FIGURES.values()]
        lines.append(_line([corpus, "*other real users*", "", "", "", "", "", *others, ""]))
    return "\n".join(lines)


def _cells(key: tuple[str, str, str, float], rows: Rows) -> list[str]:
    base, released = (mean(rows, "heldout_perplexity", name) for name in ("base", "released"))
    public, minutes = _public(rows), mean(rows, "cpu_s")
    return [
        *key[:3], f"{key[3]:g}", str(len(rows)),
        " to ".join(dict.fromkeys(_shown(each, 1) for each in (base, public, released))),
        _shown(mean(rows, "gap_closed")),
        *(_shown(mean(rows, "figures", name)) for name in FIGURES.values()),
        _shown(None if minutes is None else minutes / 60, 0),
    ]  # fmt: skip


def _public(rows: Rows) -> float | None:
    """The mean perplexity of the best model that read no private text."""
    found = [best_public(row["heldout_perplexity"]) for row in rows if "base" in row["heldout_perplexity"]]
    return statistics.mean(found) if found else None


def _shown(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits if abs(value) < 10 or digits == 0 else 1}f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def stages(rows: Rows) -> str:
    """What each charged stage of the shipped recipes costs alone."""
    lines = [_line(["corpus", "method", "epsilon", "epsilon of each charged stage alone"]), _line(["---"] * 4)]
    for (corpus, method, lever, epsilon), found in groups(rows).items():
        if lever == "shipped":
            each = ", ".join(f"{name} {value:.3g}" for name, value in found[0]["epsilon_by_stage"].items())
            lines.append(_line([corpus, method, f"{epsilon:g}", each]))
    return "\n".join(lines)


def samples(rows: Rows) -> str:
    """A page with the samples of one run of each group."""
    parts = [
        "# Samples of the frontier",
        "Texts of each row of [the frontier](../../docs/frontier.md), drawn at random from what its first run released."
        " The corpora are public data sets in the part of private ones. Rows at `inf` have next to no noise, and could"
        " not be released from real ones.",
    ]
    for (corpus, method, lever, epsilon), found in groups(rows).items():
        texts = "\n".join(" ".join(text.split()) for text in found[0]["samples"])
        parts += [f"## {corpus}, {method}, {lever}, epsilon {epsilon:g}", f"```text\n{texts}\n```"]
    return "\n\n".join(parts) + "\n"


def draw(rows: Rows, path: Path) -> None:
    """Figures of the shipped recipes over epsilon, a line for each corpus and method."""
    lines: dict[tuple[str, str], list[tuple[float, Rows]]] = {}
    for (corpus, method, lever, epsilon), found in groups(rows).items():
        if lever == "shipped":
            lines.setdefault((corpus, method), []).append((epsilon, found))
    ticks = sorted({epsilon for line in lines.values() for epsilon, _ in line})
    with rc_context({"svg.hashsalt": "frontier", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(8, 2.4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(PLOTTED)), PLOTTED, strict=True):
            for (corpus, method), line in lines.items():
                places = [ticks.index(epsilon) for epsilon, _ in line]
                values = [mean(found, "figures", FIGURES[name]) for _, found in line]
                axes.plot(
                    places, [math.nan if each is None else each for each in values], "o-", label=f"{corpus}, {method}"
                )
            every = [row for line in lines.values() for _, found in line for row in found]
            others = mean(every, "other_real_users", FIGURES[name])
            if others is not None:
                axes.axhline(others, color="#767676", linewidth=1, linestyle=":", label="other real users")
            axes.set_xticks(range(len(ticks)), [f"{epsilon:g}" for epsilon in ticks])
            axes.set(xlabel="epsilon", title=name, ylim=(0, None))
        figure.axes[0].legend(fontsize=6)
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def evidence(rows: Rows) -> Iterator[dict[str, Any]]:
    """The rows of `rayprivacy plan`: of this benchmark, with noise and of what has learnt, and of Europarl's."""
    # Other sampling moves no perplexity, but MAUVE.
    moved = set(OF_THE_RECIPE) - {"shipped"}
    trained = [row | {"lever": "shipped", "figures": {}} if row["lever"] in moved else row for row in rows]
    for (corpus, method, lever, epsilon), found in groups(trained).items():
        base, released = (mean(found, "heldout_perplexity", name) for name in ("base", "released"))
        public, gap = _public(found), mean(found, "gap_closed")
        if math.isinf(epsilon) or lever == "base" or base is None or released is None or public is None:
            continue
        of_cores = mean(found, "cpu_s")
        minutes = of_cores and round(of_cores / 60 / CORES, 1)
        settings = "the packaged recipe" if lever == "shipped" else lever
        before = {"public_over_base": round(public / base, 3), "gap_closed": gap and round(gap, 2)}
        mauve = mean(found, "figures", "mauve")
        yield _row(corpus, method, settings, epsilon, len(found), released / base, minutes, mauve) | before
    table = _read("seqpate_table")
    base = next(each["perplexity"] for each in table["summary"] if each["row"] == "pub")
    for row, (settings, minutes) in SEQPATE.items():
        of_row = [each for each in table["results"] if each["row"] == row]
        for epsilon in sorted({each["epsilon"] for each in of_row}):
            own = [each["perplexity"] for each in of_row if each["epsilon"] == epsilon]
            yield _row("europarl", "seqpate", settings, epsilon, len(own), statistics.mean(own) / base, minutes)
    for (settings, epsilon), of_row in _by_settings(_read("seqpate_own_texts")["rows"]).items():
        ratio = statistics.mean(each["perplexity"] / each["base"] for each in of_row)
        yield _row("europarl", "seqpate", f"pretrained on {settings}", epsilon, len(of_row), ratio, None)
    for (settings, epsilon), of_row in _by_settings(_read("dpsgd_table")["results"]).items():
        ratio = statistics.mean(each["perplexity"] / each["base"] for each in of_row)
        timed = [each["seconds"] * each["cores"] for each in of_row if ON_GPU not in each["changes"]]
        minutes = round(statistics.mean(timed) / 60 / CORES, 1) if timed else None
        yield _row("europarl", "generator", settings, epsilon, len(of_row), ratio, minutes)


def quoted(rows: Rows) -> Rows:
    """Those of the rows of `plan` that it can show: the best of its corpus, method and epsilon within some minutes."""
    by_kind: dict[tuple[str, str, float], Rows] = {}
    for row in rows:
        by_kind.setdefault((row["corpus"], row["method"], row["epsilon"]), []).append(row)
    best = [
        min(
            (row for row in of_kind if _minutes(row) <= limit), key=lambda row: (row["mauve"] is None, row["over_base"])
        )
        for of_kind in by_kind.values()
        for limit in {*map(_minutes, of_kind), math.inf}
    ]
    return [row for row in rows if row in best]


def _minutes(row: dict[str, Any]) -> float:
    return math.inf if row["minutes"] is None else float(row["minutes"])


def _by_settings(rows: Rows) -> dict[tuple[str, float], Rows]:
    """Rows with noise on speakers by whom nothing was chosen, by settings and epsilon."""
    found: dict[tuple[str, float], Rows] = {}
    for row in rows:
        if row.get("half", "test") == "test" and row["epsilon"] < BOUND:
            found.setdefault((row["settings"], row["epsilon"]), []).append(row)
    return found


def _row(
    corpus: str, method: str, settings: str, epsilon: float, runs: int, ratio: float, minutes: Any, mauve: Any = None
) -> dict[str, Any]:
    return {
        "corpus": corpus, "users": USERS[corpus], "method": method, "settings": settings, "epsilon": epsilon,
        "runs": runs, "over_base": round(ratio, 3),
        "public_over_base": None, "gap_closed": None, "mauve": mauve and round(mauve, 2), "minutes": minutes,
    }  # fmt: skip


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def page(rows: Rows) -> str:
    """A page with the rows, and with what each charged stage costs."""
    title = "# Rows of the frontier"
    about = "What [the frontier](../../docs/frontier.md) is about, by benchmarks/frontier_page.py from frontier.json."
    return "\n\n".join([title, about, table(rows), stages(rows)]) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = _read("frontier")["rows"]
    PAGE.write_text(page(rows))
    SAMPLES.write_text(samples(rows))
    lines = ",\n".join(map(json.dumps, quoted(list(evidence(rows)))))
    PACKAGED.write_text(f"[\n{lines}\n]\n")
    draw(rows, PLOT)


if __name__ == "__main__":
    main()
