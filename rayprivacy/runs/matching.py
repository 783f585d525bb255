"""Matching as a stage of a run: the topics of the candidates, the private vote, and the texts that are kept.

candidates of the released model -> topics by meaning, lengths in words             (public)
users -> shares of their texts by topic and by length -> RELEASE GATE, one charge   (released)
candidates -> as many as are wanted, in these shares -> released text               (free)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.artifacts import Private, digest_json
from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.evaluation.distances import total_variation
from rayprivacy.generation.codes import Codes
from rayprivacy.matching.choice import Cells, Shares, chosen, raked, shares_of
from rayprivacy.matching.cuts import cut
from rayprivacy.matching.settings import MatchConfig
from rayprivacy.matching.shape import LENGTHS, Shape, lengths
from rayprivacy.matching.votes import shape_votes
from rayprivacy.models.sentence_model import SentenceModel
from rayprivacy.release.margins import Margins
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.match_plan import MATCH, PARTS_VOTED, planned_margins
from rayprivacy.runs.method import SYNTHETIC

NAMES = ("topics", "lengths")


def text_file(run: Run[Any], match: MatchConfig | None) -> Path:
    """Where a method writes its texts: the release itself, or the candidates that are to be matched."""
    return run.root / SYNTHETIC if match is None else run.public("candidates.parquet")


def match_texts(
    context: RunContext[Any],
    match: MatchConfig,
    count: int,
    codes: Codes | None = None,
    code_shares: Any = None,
) -> dict[str, Any]:
    """Run the stage: vote, or find the votes released, and write the candidates that are kept as the released text.

    Args:
        context: of the run; its candidates are in `text_file`.
        match: the block of the recipe.
        count: texts that are kept.
        codes: the control codes of the candidates, if they have any.
        code_shares: float64 [codes], their shares, which are to stay.

    Returns:
        Figures for metrics.json: how far the lengths of the candidates, the topics of what they were cut to, and both
        of the kept texts are from the released shares.

    Raises:
        BudgetRefusedError: the account has less left than the votes cost.
    """
    with context.stage(MATCH):
        candidates, seed = pq.read_table(text_file(context.run, match)), context.recipe.seed
        whole, sentences = candidates["text"].to_pylist(), SentenceModel.packaged()
        shape = _shape(context, match, whole, sentences)
        margins = planned_margins(match, context.plan.protection.unit, shape.blocks)
        question = shape.question(sentences)
        votes = _votes(context, shape, margins, question)
        wanted = margins.split(context.release_histogram(MATCH, margins, votes, question=question).value)
        texts = cut(whole, wanted[1], seed) if match.cut else whole
        cells = shape.cells(texts, sentences)
        sides, shares = cells, wanted
        if codes is not None and codes.columns:
            sides, shares = np.hstack([cells, _code_cells(candidates, codes)]), [*wanted, code_shares]
        places = _kept(texts, sides, shares, count, seed)
        _write(candidates, texts, places, context.run.root / SYNTHETIC)
        before = np.column_stack([cells[:, 0], lengths(whole)])
        found = [shares_of(each, shape.blocks) for each in (before, cells[places])]
    return {"candidates": len(whole), "total_variation_to_votes": _distances(wanted, *found)}


def _code_cells(candidates: pa.Table, codes: Codes) -> Cells:
    """The control code of each candidate, [candidates, 1]."""
    return np.array([[codes.index(row)] for row in candidates.select(codes.columns).to_pylist()], np.int64)


def _kept(texts: list[str], cells: Cells, shares: list[Shares], count: int, seed: int) -> Cells:
    """The places of the texts that are kept; equal ones, such as many that are cut to one word, only if others lack."""
    first = {text: place for place, text in reversed(list(enumerate(texts)))}
    different = np.sort(list(first.values())) if len(first) >= count else np.arange(len(texts))
    return different[chosen(raked(cells[different], shares, count), cells[different], seed)]


def _shape(context: RunContext[Any], match: MatchConfig, whole: list[str], sentences: SentenceModel) -> Shape:
    """The topics of the candidates, cut as if all lengths were wanted alike: no votes are known yet."""
    path = context.run.public(f"shape-{digest_json([whole, match.model_dump()])[:16]}.safetensors")
    if not path.exists():
        texts = cut(whole, np.full(LENGTHS, 1 / LENGTHS), context.recipe.seed) if match.cut else whole
        write_atomic(path, Shape.of(texts, sentences, match).state(), SHARED)
    return Shape.restored(path.read_bytes())


def _votes(context: RunContext[Any], shape: Shape, margins: Margins, question: str) -> Private[Any]:
    """The private sums, which are kept: a run that is resumed does not embed the corpus again."""
    made_of = [context.corpus.corpus_digest(context.key), question, margins.parameters]
    path = context.run.private(f"votes-{digest_json(made_of)[:16]}")
    if path.exists():
        return Private(np.frombuffer(path.read_bytes(), np.int64))
    votes = shape_votes(context.shards, context.plan.parts, shape, margins, context.counter(PARTS_VOTED))
    write_atomic(path, votes.reveal().tobytes())
    return votes


def _write(candidates: pa.Table, texts: list[str], places: Cells, path: Path) -> None:
    column = candidates.column_names.index("text")
    kept = candidates.set_column(column, "text", pa.array(texts, pa.large_string())).take(places)
    pq.write_table(kept, path.with_suffix(".tmp"), compression="zstd")
    path.with_suffix(".tmp").replace(path)


def _distances(wanted: list[Shares], before: list[Shares], after: list[Shares]) -> Mapping[str, Mapping[str, float]]:
    return {
        name: {"candidates": total_variation(votes, old), "released": total_variation(votes, new)}
        for name, votes, old, new in zip(NAMES, wanted, before, after, strict=True)
    }
