"""Internal evaluation on held-out users: perplexity of trees and of utterances, and how functions agree.

All figures read private text and are outside the certificate: `releasable: false`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from rayprivacy.core.console import Told, nobody
from rayprivacy.dpsgd.units import documents_of
from rayprivacy.evaluation.language import length_summary, perplexity
from rayprivacy.evaluation.trees import function_shares, tree_figures, word_recall
from rayprivacy.methods.two_stage.public_side import constants_of
from rayprivacy.methods.two_stage.readings import RELEASED_TREE, parses_of, utterances_of
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs import heldout
from rayprivacy.runs.directory import Run
from rayprivacy.runs.method import SYNTHETIC, Chart, Table
from rayprivacy.runs.sealing import sealed
from rayprivacy.structures.trees import names

SHOWN = 30  # of the most frequent functions, in the picture of their distribution


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[TwoStageRecipe], backbone: Backbone, models: dict[str, tuple[Any, Any]], told: Told = nobody
) -> Mapping[str, Any]:
    """Perplexity of held-out trees and utterances together, and of each."""
    rows = heldout.heldout_rows(run)
    if not rows:
        return dict(heldout.NOBODY)
    readings = (parses_of(run.recipe), utterances_of(run.recipe))
    documents = [documents_of(rows, backbone, reading) for reading in readings]
    measured: dict[str, dict[str, float]] = {"trees": {}, "utterances": {}, "perplexity": {}}
    for number, (name, pair) in enumerate(models.items()):
        told(number)
        parts = [heldout.total_loss(run, model, backbone.end, own) for model, own in zip(pair, documents, strict=True)]
        together = tuple(map(sum, zip(*parts, strict=True)))
        for kind, (loss, tokens) in zip(measured, [*parts, together], strict=True):
            measured[kind][name] = perplexity(loss, int(tokens))
    return {
        "releasable": False,
        "why": heldout.WHY,
        "perplexity": measured["perplexity"],
        "perplexity_of_trees": measured["trees"],
        "perplexity_of_utterances": measured["utterances"],
        "lengths": length_summary([row["text"] for row in rows]),
    }


@sealed("the evaluation on held-out users")
def tree_metrics(run: Run[TwoStageRecipe]) -> Mapping[str, Any]:
    """Words and functions of synthetic text against those of held-out users' text."""
    rows = heldout.heldout_rows(run)
    if not rows:
        return dict(heldout.NOBODY)
    synthetic = pq.read_table(run.root / SYNTHETIC)
    texts, trees = (synthetic[name].to_pylist() for name in ("text", RELEASED_TREE))
    column = run.recipe.parses.column
    real = [str(row[column] or "") for row in rows]
    figures = {
        "tree_share": sum(names(tree) is not None for tree in real) / len(real),
        "word_recall": word_recall([row["text"] for row in rows], texts),
        **tree_figures(real, trees, constants_of(run.recipe)),
    }
    return {
        "releasable": False,
        "why": heldout.WHY,
        "real": len(rows),
        "synthetic": len(texts),
        **{name: round(value, 4) for name, value in figures.items()},
        "function_shares": function_shares(real, trees, SHOWN, constants_of(run.recipe)),
    }


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
    shares, columns = measured.get("function_shares"), ("what", "figure")
    return [
        *([_distribution(shares)] if shares else []),
        Table("How parse trees were drawn", columns, _rows(_DRAWN, drawn), internal=False),
        Table("Words and functions beside held-out text", columns, _rows(_MEASURED, measured), internal=True),
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
