"""Losses of models on the users of a run: the scorer, the members and non-members who are scored, and shadow models.

Ten thousand candidates share a sentence and differ in its last words. The model reads the common tokens once, its keys
and values are copied for each batch, and only the rest is computed anew. Rows are padded on the right, which a causal
model never looks at from the left.

Shadow models are trained like the audited one, on halves of the users that are known. They come in pairs, and a pair
splits the users between them by a keyed coin. So each user is in half of the shadows and out of the others. They differ
from the audited model in one thing: it saw all training users, and each of them half of all users, held-out ones among
them.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.auditing.membership import calibrated, likelihood_ratio, offline_ratio, shadow_attack
from rayprivacy.auditing.population import AuditedRow
from rayprivacy.core.keys import Key
from rayprivacy.models.backbone import Backbone

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_OWN_VARIANCES_FROM = 64  # shadows; below it LiRA estimates one variance for all users
_LEAST_SHARED = 4  # tokens; below it copying keys and values costs more than reading them again


@dataclass(frozen=True)
class ModelLoss:
    """Losses of a model on texts, as documents `start, prefix, text, end`, where the prefix carries no loss. A text of
    more than `max_tokens` is cut, and then has no end. `batch_tokens` padded tokens are computed together.
    """

    backbone: Backbone
    max_tokens: int = 128
    batch_tokens: int = 1024
    max_context: int | None = None
    prefix: str = ""

    def __call__(self, texts: Sequence[str]) -> Array:
        """The negative log-likelihood of each text, in nats, summed over its tokens."""
        return self.totals(texts, [self.prefix] * len(texts))[0]

    def per_token(self, texts: Sequence[str], prefixes: Sequence[str] | None = None) -> Array:
        """The same, divided by the number of tokens."""
        total, tokens = self.totals(texts, prefixes if prefixes is not None else [self.prefix] * len(texts))
        return total / tokens

    @torch.no_grad()
    def totals(self, texts: Sequence[str], prefixes: Sequence[str]) -> tuple[Array, Array]:
        """The losses behind the prefixes, in nats, and the tokens that each is the sum over."""
        documents = []  # token ids, and how many of them are context
        for text, prefix in zip(texts, prefixes, strict=True):
            context = self.backbone.prefix(prefix, self.max_context)
            documents.append((context + self.backbone.document(text, self.max_tokens)[1:], len(context)))
        shared = _shared([ids for ids, _ in documents])
        read, past = self._read(documents[0][0][: shared + 1]) if shared else (np.zeros(1), None)
        total = np.array([read[first:].sum() for _, first in documents])
        for batch in _batches([len(ids) - shared for ids, _ in documents], self.batch_tokens):
            total[batch] += self._batch([documents[row] for row in batch], shared, past)
        return total, np.array([len(ids) - first for ids, first in documents], dtype=np.float64)

    def _read(self, ids: list[int]) -> tuple[Array, Any]:
        """The loss of each common token, and the keys and values of all but the last one."""
        out = self.backbone.model(input_ids=torch.tensor([ids[:-1]]), use_cache=True)
        losses = torch.nn.functional.cross_entropy(out.logits[0].float(), torch.tensor(ids[1:]), reduction="none")
        return np.concatenate([[0.0], losses.double().numpy()]), out.past_key_values

    def _batch(self, documents: list[tuple[list[int], int]], shared: int, past: Any) -> Array:
        """The losses of what follows the first `shared` tokens, whose keys and values are `past`."""
        rest = [ids[shared:] for ids, _ in documents]
        width = max(map(len, rest))
        ids = torch.tensor([row + [self.backbone.end] * (width - len(row)) for row in rest])
        positions = torch.arange(shared, shared + width).expand_as(ids).contiguous()
        cache = copy.deepcopy(past)  # the model appends to what it is given
        if cache is not None:
            cache.batch_repeat_interleave(len(rest))
        cached = {"past_key_values": cache, "use_cache": cache is not None}
        out = self.backbone.model(input_ids=ids, position_ids=positions, **cached)
        place = torch.arange(1, width)
        first = torch.tensor([[first - shared] for _, first in documents])
        length = torch.tensor([[len(row)] for row in rest])
        counted = (place >= first) & (place < length)
        said, wanted = out.logits[:, :-1][counted].float(), ids[:, 1:][counted]
        nll = torch.nn.functional.cross_entropy(said, wanted, reduction="none")
        total = torch.zeros(len(rest), dtype=torch.float64)
        return np.asarray(total.index_add(0, torch.nonzero(counted)[:, 0], nll.double()).numpy())


def _shared(documents: list[list[int]]) -> int:
    """How many tokens to read once for all; the last common one is read again, since it predicts what differs."""
    if len(documents) < 2:
        return 0
    first, last = min(documents), max(documents)  # what these two share, all share
    differ = (place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    common = next(differ, min(len(first), len(last)))
    return common - 1 if common > _LEAST_SHARED else 0


def _batches(lengths: list[int], most: int) -> list[list[int]]:
    """Rows of similar length, at most `most` padded tokens together."""
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > most:
            batches.append([])
        batches[-1].append(row)
    return batches


class ScoredModel(Protocol):
    """A released model, and what attacks read of it on private rows."""

    @property
    def folder(self) -> str:
        """Of the model in the run directory."""

    def totals(self, backbone: Backbone, rows: Sequence[AuditedRow]) -> tuple[Array, Array]:
        """What the model loses on each row, in nats, and on how many tokens, or other parts, that is."""

    def certainty(self, backbone: Backbone, rows: Sequence[AuditedRow]) -> Array:
        """Figures of how sure the model is of what it says of each row, [rows, figures]; maybe none."""


@dataclass(frozen=True)
class Scored:
    """A released model, and how it read a row: the context in front, and the text; no `max_context` if short."""

    folder: str
    prefix: Callable[[AuditedRow], str]
    text: Callable[[AuditedRow], str]
    max_tokens: int
    max_context: int | None = None

    def totals(self, backbone: Backbone, rows: Sequence[AuditedRow]) -> tuple[Array, Array]:
        """What the model loses on each row, in nats, and on how many tokens."""
        scorer = ModelLoss(backbone, self.max_tokens, max_context=self.max_context)
        return scorer.totals([self.text(row) for row in rows], [self.prefix(row) for row in rows])

    def certainty(self, backbone: Backbone, rows: Sequence[AuditedRow]) -> Array:
        """None: a language model is attacked by its losses alone."""
        return np.empty((len(rows), 0))


def joint_losses(models: Sequence[ScoredModel], backbones: Sequence[Backbone], rows: Sequence[AuditedRow]) -> Array:
    """What all models of a release together lose on each row, in nats per token."""
    parts = [model.totals(backbone, rows) for model, backbone in zip(models, backbones, strict=True)]
    loss, tokens = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    return np.asarray(loss / tokens, np.float64)


@dataclass(frozen=True)
class Shadow:
    """One shadow model: its number, the directory of its run, and the key that decides which users are in."""

    number: int
    root: Path
    key: Key = field(repr=False)

    def holds(self, user: str) -> bool:
        """Whether this user is among those it learns from."""
        return self.key.integer("shadow", self.number // 2, user) % 2 == self.number % 2


@dataclass(frozen=True)
class Read:
    """What a model says of users: losses, [users], and further features of Shokri's attack, [users, features]."""

    losses: Array
    certainty: Array


def shadow_scores(own: Read, public: Array, shadows: Sequence[Read], inside: Mask) -> dict[str, Array]:
    """Scores of LiRA and of Shokri's attack, by name; high means member. `inside` is bool [shadows, users]."""
    losses, shared = np.stack([each.losses for each in shadows]), len(shadows) < _OWN_VARIANCES_FROM
    features = np.concatenate([_features(each, public) for each in shadows])
    return {
        "LiRA": likelihood_ratio(own.losses, losses, inside, shared_variance=shared),
        "LiRA, offline": offline_ratio(own.losses, losses, inside, shared_variance=shared),
        "shadow attack": shadow_attack(features, inside.ravel(), _features(own, public)),
    }


def inside_of(shadows: Sequence[Shadow], users: Sequence[str]) -> Mask:
    """Which user is in which shadow, bool [shadows, users]."""
    return np.array([[shadow.holds(user) for user in users] for shadow in shadows])


def _features(read: Read, public: Array) -> Array:
    return np.column_stack([read.losses, calibrated(read.losses, public), public, read.certainty])
