"""What happens on public text before any private text is read: pseudo-sentences, bases, warm start, queries.

Query selection follows SeqPATE (Tian et al. 2022, section 3.3): a position of a pseudo-sentence is worth asking about
when its pseudo-label is outside the student's top m. Candidates are the student's own top k (or top p): public.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rayprivacy.core.files import read_json, write_json
from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.generation.student import fit_next_token
from rayprivacy.methods.recipe import Recipe, VotesConfig
from rayprivacy.methods.run import Run
from rayprivacy.models.adapters import Basis, HeadAdapter, public_basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, encode_documents
from rayprivacy.models.queries import Queries

ROWS = 512


@dataclass(frozen=True)
class PublicSide:
    """Everything the private side and the student need from public text.

    Attributes:
        features: next-token examples of the pseudo-sentences.
        basis: public bases of all adapters.
        warm: the student after the pseudo-sentences, before any vote.
        queries: what will be asked.
    """

    features: Features
    basis: Basis
    warm: HeadAdapter
    queries: Queries


def prepare_public(run: Run, backbone: Backbone, prompts: list[str]) -> PublicSide:
    """Compute, or load, the public side of a run."""
    recipe = run.recipe
    with run.stage("pseudo-sentences"):
        features = _pseudo_features(run, backbone, prompts)
    with run.stage("public bases and warm start"):
        basis = _basis(run.public("basis.safetensors"), backbone, features, recipe)
        warm = _warm(run.public("warm.safetensors"), backbone, features, basis, recipe)
    with run.stage("query selection"):
        queries = _queries(run.public("queries.safetensors"), backbone, features, warm, recipe)
    return PublicSide(features, basis, warm, queries)


def _pseudo_features(run: Run, backbone: Backbone, prompts: list[str]) -> Features:
    texts, path = run.public("pseudo.json"), run.public("pseudo.safetensors")
    if not texts.exists():
        config = run.recipe.pseudo
        write_json(texts, sample(backbone.model, backbone, cut_prompts(prompts, config), config))
    if not path.exists():
        documents, row = read_json(texts), run.recipe.teachers.row_tokens
        features = encode_documents(backbone, documents, row, max_rows=len(documents))
        _save(path, {"hidden": features.hidden, "targets": features.targets})
    return Features(**load_file(path))


def _basis(path: Path, backbone: Backbone, features: Features, recipe: Recipe) -> Basis:
    if not path.exists():
        basis = public_basis(backbone, features, recipe.teachers.rank, recipe.teachers.shortlist)
        _save(path, {"inward": basis.inward, "outward": basis.outward, "shortlist": basis.shortlist})
    return Basis.load(path)


def _warm(path: Path, backbone: Backbone, features: Features, basis: Basis, recipe: Recipe) -> HeadAdapter:
    config = recipe.student
    if not path.exists():
        rank_in, rank_out = (min(rank, len(basis.outward)) for rank in (config.rank_in, config.rank_out))
        start = HeadAdapter.zeros(basis, rank_in, rank_out)
        warm = fit_next_token(
            start, features, backbone.head, config.warm_steps, config.warm_batch, config.warm_learning_rate, config.seed
        )
        _save(path, {"matrix": warm.matrix})
    return HeadAdapter(basis, load_file(path)["matrix"])


def _queries(path: Path, backbone: Backbone, features: Features, student: HeadAdapter, recipe: Recipe) -> Queries:
    if not path.exists():
        queries = select_queries(features, student, backbone.head, backbone.end, recipe.votes, recipe.seed)
        _save(path, {"hidden": queries.hidden, "candidates": queries.candidates, "allowed": queries.allowed})
    return Queries.load(path)


@torch.no_grad()
def select_queries(
    features: Features, student: HeadAdapter, head: torch.Tensor, end: int, config: VotesConfig, seed: int
) -> Queries:
    """Choose positions and candidates; fewer than asked for when the pseudo-sentences have no more."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    hidden, candidates, allowed, found = [], [], [], 0
    for take in order.split(ROWS):
        logits = student(features.hidden[take]) @ head.T
        rank = (logits > logits.gather(1, features.targets[take][:, None])).sum(1)
        keep = rank >= config.outside_top
        chosen, mask = candidate_tokens(logits[keep], end, config)
        hidden.append(features.hidden[take][keep].float())
        candidates.append(chosen)
        allowed.append(mask)
        found += len(chosen)
        if found >= config.queries:
            break
    return Queries(torch.cat(hidden), torch.cat(candidates), torch.cat(allowed)).rows(0, config.queries)


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


def _save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file that appears whole: stages take its being there as being finished."""
    scratch = path.with_suffix(".tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, scratch)
    scratch.replace(path)
