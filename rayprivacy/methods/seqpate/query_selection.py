"""Which positions of the pseudo-sentences teachers are asked about, and the candidates at each. All of it is public.

Source: SeqPATE (Tian et al., NeurIPS 2022), section 3.3: a position is worth asking about when its pseudo-label is
outside the student's top m; candidates are the student's own top k (or top p). A context is asked about once: equal
beginnings of several pseudo-sentences are one query.
"""

import torch

from rayprivacy.methods.seqpate.recipe import VotesConfig
from rayprivacy.methods.seqpate.students import Student
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded
from rayprivacy.models.queries import Queries

ROWS = 512


@torch.no_grad()
def select_queries(
    rows: Encoded, student: Student, backbone: Backbone, config: VotesConfig, count: int, seed: int
) -> Queries:
    """Choose positions and candidates; fewer than `count` when the pseudo-sentences have no more."""
    places, labels = _distinct(rows)
    adapted = student.hidden(rows)
    found, parts = 0, []
    for take in _order(adapted, places, backbone.head, config, seed).split(ROWS):
        row, position = places[take].T
        logits = adapted[row, position].float() @ backbone.head.T
        rank = (logits > logits.gather(1, labels[take][:, None])).sum(1)
        keep = rank >= (config.outside_top if config.select == "threshold" else 0)
        candidates, allowed = candidate_tokens(logits[keep], backbone.end, config)
        own = logits[keep].gather(1, candidates).masked_fill(~allowed, -torch.inf)
        hidden = rows.hidden[row, position][keep].float()
        parts.append(Queries(hidden, candidates, allowed, torch.softmax(own, -1), places[take][keep]))
        found += len(candidates)
        if found >= count:
            break
    return Queries.join(parts).rows(0, count).by_context()


def _distinct(rows: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions [n, 2] whose context occurs there for the first time, and the tokens [n] that follow."""
    seen: set[tuple[int, ...]] = set()
    places = []
    for row, position in rows.predicts.nonzero().tolist():
        start = int((rows.segment[row] == rows.segment[row, position]).nonzero()[0])
        context = tuple(rows.ids[row, start : position + 1].tolist())
        if context not in seen:
            seen.add(context)
            places.append((row, position))
    where = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
    return where, rows.ids[where[:, 0], where[:, 1] + 1]


def _order(
    adapted: torch.Tensor, places: torch.Tensor, head: torch.Tensor, config: VotesConfig, seed: int
) -> torch.Tensor:
    if config.select != "entropy":
        return torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    states = adapted[places[:, 0], places[:, 1]].float()
    entropy = [torch.distributions.Categorical(logits=part @ head.T).entropy() for part in states.split(ROWS)]
    return torch.cat(entropy).argsort(descending=True, stable=True)


def candidate_tokens(logits: torch.Tensor, end: int, config: VotesConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The student's top k with the end token among them, and which of them the top-p filter keeps."""
    ranked = logits.clone()
    ranked[:, end] = torch.inf
    candidates = ranked.topk(config.top_k, dim=1).indices
    if config.top_p is None:
        return candidates, torch.ones_like(candidates, dtype=torch.bool)
    probability = torch.softmax(logits, -1).gather(1, candidates)
    before = torch.cumsum(probability[:, 1:], 1) - probability[:, 1:]
    return candidates, torch.cat([torch.ones_like(candidates[:, :1], dtype=torch.bool), before < config.top_p], 1)
