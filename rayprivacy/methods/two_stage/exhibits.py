"""The report's tables and its picture: how trees were drawn, and how words and functions agree with held-out text."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayprivacy.runs.exhibits import Chart, Table

_DRAWN = {
    "free_draws": "trees sampled freely",
    "free_draws_accepted": "of these, follow the grammar",
    "pass_rate": "share of free draws that follow it",
    "masked_draws": "trees sampled under masks",
    "left_out": "left out: not complete in time",
    "written": "trees written",
}
_MEASURED = {
    "tree_share": "real texts that have a tree",
    "word_recall": "real words that occur in synthetic text",
    "function_recall": "real functions that occur in synthetic trees",
    "function_distance": "chi-square distance of functions, 0 to 1",
    "top_10": "the 10 most frequent functions that agree",
    "top_25": "the 25 most frequent",
    "top_50": "the 50 most frequent",
    "top_100": "the 100 most frequent",
}


def tree_exhibits(drawn: Mapping[str, Any], measured: Mapping[str, Any]) -> list[Chart | Table]:
    """How trees were drawn; and, internal, the distribution of functions and the figures of words and functions."""
    shares = measured.get("function_shares")
    return [
        *([_distribution(shares)] if shares else []),
        Table("How parse trees were drawn", ("what", "figure"), _rows(_DRAWN, drawn), internal=False),
        Table(
            "Words and functions beside held-out text", ("what", "figure"), _rows(_MEASURED, measured), internal=True
        ),
    ]


def _distribution(shares: Sequence[tuple[float, float]]) -> Chart:
    lines = zip(("held-out text", "synthetic text"), zip(*shares, strict=True), strict=True)
    return Chart(
        name="functions",
        title="Share of each function, the most frequent one of held-out text first",
        across="rank of the function in held-out text",
        up="share of all functions",
        series={name: list(enumerate(line, start=1)) for name, line in lines},
        internal=True,
    )


def _rows(names: Mapping[str, str], figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(said, str(figures[name])) for name, said in names.items() if figures.get(name) is not None]
