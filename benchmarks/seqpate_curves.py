"""What limits SeqPATE, weak teachers, few queries or noise, as perplexities of the held-out over the number of queries.

    public base, base + pseudo-sentences, not private       where one begins, and what the corpus has to teach
    mean of teachers        the teachers' mean distribution itself, asked at the held-out positions, without noise
    votes without noise     a student of the mean distribution at n queries: what n queries say, and a student can learn
    clipped without noise   the same of centred and clipped votes: what clipping takes away
    noisy student           the same votes through the gate: what noise takes away

`seqpate_table.py --curves N ...` runs them. All students of a seed have the same teachers and settings, and those of
one number of queries the same questions. Votes are about the student's candidates alone. So the mean of teachers shares
out the mass that the warm student gives to its candidates, and other tokens keep what that student gives them.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from rayprivacy.evaluation.language import perplexity
from rayprivacy.methods.seqpate.plan import GATE, plan_run
from rayprivacy.methods.seqpate.public_side import Round, candidate_tokens, save_tensors, select_queries
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.methods.seqpate.students import vote_targets
from rayprivacy.models.features import Queries

ROWS = 512
LEAST = 1e-9  # of a mean probability, which is a multiple of a grid's step and may be 0


def curves(found: Any, pool: Any, recipe: SeqPateRecipe, counts: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of one seed and budget.

    Args:
        found: the `seqpate_table.Bench` of the seed, whose teachers are trained.
        pool: its teachers.
        recipe: of the row, with its budget.
        counts: numbers of queries.
    """
    yield {"curve": "mean of teachers", "perplexity": round(_of_teachers(found, pool, recipe), 3)}
    for count in counts:
        asked = recipe.model_copy(update={"votes": recipe.votes.model_copy(update={"queries": count})})
        yield from _of_queries(found, pool, asked)


def _of_teachers(found: Any, pool: Any, recipe: SeqPateRecipe) -> float:
    """Perplexity of the teachers' mean at the positions of the held-out rows."""
    examples, keep = found.heldout.examples, found.heldout.predicts
    parts = found.warm.hidden(found.heldout)[:, :-1][keep].float().split(ROWS), examples.targets.split(ROWS)
    at = [_position(found, recipe, *piece) for piece in zip(*parts, strict=True)]
    candidates, allowed, own, target = (torch.cat(each) for each in zip(*at, strict=True))
    rows = found.run.private("heldout-rows.safetensors")
    save_tensors(rows, vars(found.heldout))
    queries = Queries(examples.hidden.float(), candidates, allowed, own.softmax(-1), keep.nonzero())
    mean = _mean(found, pool, queries, recipe, clip=None, rows=rows)
    shared = own.logsumexp(-1, keepdim=True) + mean.clamp_min(LEAST).log()
    is_target = (candidates == examples.targets[:, None]) & allowed
    logs = torch.where(is_target.any(1), torch.where(is_target, shared, 0.0).sum(1), target)
    return perplexity(float(-logs.sum()), len(logs))


def _position(found: Any, recipe: SeqPateRecipe, adapted: torch.Tensor, targets: torch.Tensor) -> Any:
    """Candidates, which of them count, the warm student's logarithms of them, and that of the token that followed."""
    logs = torch.log_softmax(adapted @ found.backbone.head.T, -1)
    candidates, allowed = candidate_tokens(logs, found.backbone.end, recipe.votes)
    own = logs.gather(1, candidates).masked_fill(~allowed, -torch.inf)
    return candidates, allowed, own, logs.gather(1, targets[:, None])[:, 0]


def _of_queries(found: Any, pool: Any, recipe: SeqPateRecipe) -> Iterator[dict[str, Any]]:
    """Students of one number of queries: of plain votes, of clipped ones, and of what the gate releases of these."""
    start, votes = found.start(recipe), recipe.votes
    queries = select_queries(found.rows, start, found.backbone, votes, votes.queries, recipe.seed)
    mechanism = replace(plan_run(recipe).stage(GATE).mechanism, queries=len(queries))
    names = {"queries": len(queries), "clip": mechanism.clip}
    rows = Round.of(0, start).rows(found.run)
    for curve, clip in (("votes without noise", None), ("clipped without noise", mechanism.clip)):
        mean = _mean(found, pool, queries, recipe, clip, rows)
        targets = vote_targets(mean, queries, clip is not None, recipe.student)
        student = start.distilled(queries, targets, found.rows, recipe.student)
        yield {"curve": curve, **names, "perplexity": round(found.perplexity(student), 3)}
    yield {"curve": "noisy student", **names, "perplexity": found.row(recipe, pool)["perplexity"]}


def _mean(
    found: Any, pool: Any, queries: Queries, recipe: SeqPateRecipe, clip: float | None, rows: Any = None
) -> torch.Tensor:
    """Mean ballots of all teachers without noise: an internal figure's input, never released."""
    mechanism = replace(plan_run(recipe).stage(GATE).mechanism, queries=len(queries), clip=clip)
    sums, _ = found.voted(pool, queries, mechanism, rows)
    return torch.from_numpy(mechanism.to_mean(sums.reveal())).float()
