"""What is measured of a sanitised corpus beside its private text, all of it internal: pairs of texts, and attacks.

Four attacks guess the original words of a sanitised text, the strongest last:

- `mask` knows the sanitised words before; the word itself is masked (Yue et al., 2021, with a causal model for BERT).
- `identity` guesses that the sanitised word is the original: N_x of the paper.
- `bayes` knows the sanitised word, the public table and public frequencies; exact.
- `context` knows all of that and reads the sanitised words before with a language model (Tong et al., NAACL 2025).

The paper reports the first one, which throws the best evidence away: its defence rates flatter. Success is the share of
words that are on the public list and are guessed; unknown words are never guessed.

Sanitised words mislead a language model, which is sure of what it expects: taken alone as the prior it guesses fewer
words than the public table does. So it makes up `TRUST` of the prior, and the public frequencies the rest.

A language model has pieces of words. The probability of a word is that of its first piece, shared out among the words
that begin with that piece in proportion to the public prior.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from scipy import stats

from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import read_part
from rayprivacy.methods.santext.mechanisms import Planned
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.method import Chart, Table
from rayprivacy.runs.sealing import sealed
from rayprivacy.sanitize import documents, mechanism
from rayprivacy.sanitize.job import SanitiseJob, tags_of

Ids = npt.NDArray[np.integer]
Matrix = npt.NDArray[np.float64]
Pair = tuple[Ids, Ids]  # a document before and after: ids of its words, and of their outcomes, one for one
Likelihoods = Callable[[Ids], Matrix]
ATTACKS = ("mask", "identity", "bayes", "context")
TRUST = 0.3
_AT_ONCE = 64  # positions whose words are compared at once, [positions, vocabulary]
SHOWN = 12  # pairs of texts
_SEED = 0
_SAMPLE, _POINTS, _GROUPS = 400, 50, 20  # words with scores, points of a line, groups by rank, at most
ATTACKED = {
    "mask": "Masked word, from the sanitised words before (the paper's attack)",
    "identity": "The sanitised word itself",
    "bayes": "Bayes, with the public table and frequencies",
    "context": "Bayes, with the table and a language model",
}


@dataclass(frozen=True)
class Success:
    """How many of the attacked words on the public list an attack guessed."""

    guessed: int
    words: int

    @property
    def rate(self) -> float:
        """The share of words that were guessed."""
        return self.guessed / self.words if self.words else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the rate (Clopper and Pearson), words taken as independent."""
        if not self.words:
            return 0.0, 1.0
        found = stats.binomtest(self.guessed, self.words).proportion_ci(0.95, "exact")
        return float(found.low), float(found.high)


def attack(
    pairs: Sequence[Pair], spelled: Sequence[str], likelihoods: Likelihoods, prior: Matrix, backbone: Backbone
) -> dict[str, Success]:
    """All four attacks on the same words, given the public vocabulary and the ln-probabilities of its words (`prior`).

    Ids beyond the vocabulary stand for unknown words and typed values; `likelihoods` gives ln Pr[outcome | word],
    [outcomes, vocabulary].
    """
    reader = _Reader(backbone, spelled, prior)
    guessed, words = dict.fromkeys(ATTACKS, 0), 0
    for words_before, words_after in pairs:
        known = np.flatnonzero((words_before < len(spelled)) & (words_after < len(spelled)))
        words += len(known)
        if not len(known):
            continue
        context = reader.log_probabilities(words_after)
        for start in range(0, len(known), _AT_ONCE):
            places = known[start : start + _AT_ONCE]
            before, after = words_before[places], words_after[places]
            expected, table = context[places], likelihoods(after)
            mixed = np.logaddexp(expected + np.log(TRUST), prior + np.log(1 - TRUST))
            for name, guess in (
                ("mask", expected.argmax(1)),
                ("identity", after),
                ("bayes", (table + prior).argmax(1)),
                ("context", (table + mixed).argmax(1)),
            ):
                guessed[name] += int((guess == before).sum())
    return {name: Success(count, words) for name, count in guessed.items()}


@dataclass(frozen=True, eq=False)
class _Reader:
    """Probabilities of the words of a vocabulary after a sanitised text, by a language model."""

    backbone: Backbone
    spelled: Sequence[str]
    prior: Matrix

    @torch.no_grad()
    def log_probabilities(self, words: Ids) -> Matrix:
        """ln-probabilities of every word of the vocabulary at every place of a text, [places, vocabulary]."""
        pieces = [self._encoded(word) for word in words.tolist()]
        starts = np.cumsum([0, *map(len, pieces[:-1])])
        ids = [self.backbone.start, *(piece for each in pieces for piece in each)]
        model: Any = self.backbone.model
        hidden = model(torch.tensor([ids[: int(starts[-1]) + 1]])).logits[0, torch.from_numpy(starts)].float()
        tokens = torch.log_softmax(hidden, -1).double().numpy()
        return np.asarray(tokens[:, self._first] + self._shares)

    def _encoded(self, word: int) -> list[int]:
        text = f" {self.spelled[word]}" if word < len(self.spelled) else " something"
        return self.backbone.ids(text)

    @cached_property
    def _first(self) -> Ids:
        return np.array([self._encoded(word)[0] for word in range(len(self.spelled))], dtype=np.int64)

    @cached_property
    def _shares(self) -> Matrix:
        """ln of the share of each word among the words that begin with the same piece."""
        totals = np.zeros(int(self._first.max()) + 1)
        np.add.at(totals, self._first, np.exp(self.prior))
        return np.asarray(self.prior - np.log(totals[self._first]))


@sealed("attacking sanitised text")
def attacks(
    job: SanitiseJob, parts: int, found: Planned, backbone: Backbone, key: Key, words: int
) -> Mapping[str, Any]:
    """Success of four attacks on about `words` words of documents that a public seed draws."""
    pairs, size = [], 0
    for pair in _pairs(job, parts, key):
        pairs.append(pair)
        size += int((pair[0] < len(found.vocabulary)).sum())
        if size >= words:
            break
    prior = mechanism.public_prior(len(found.vocabulary))
    results = attack(
        pairs, found.vocabulary.words, lambda after: mechanism.log_likelihoods(found.mechanism, after), prior, backbone
    )
    figures = {name: {"rate": each.rate, "interval": each.interval} for name, each in results.items()}
    return {"releasable": False, "words": next(iter(results.values())).words, "success": figures}


def attack_table(measured: Mapping[str, Any]) -> Table:
    """The four attacks, for the report."""
    rows = [
        (name, f"{each['rate']:.1%}", "{:.1%} to {:.1%}".format(*each["interval"]))
        for key, name in ATTACKED.items()
        for each in (measured["success"][key],)
    ]
    title = f"Original words that are guessed, of {measured['words']}"
    return Table(title, ("Attack", "Guessed", "95% interval"), rows, internal=True)


@sealed("writing texts before and after")
def write_pairs(job: SanitiseJob, parts: int, key: Key, path: Path) -> None:
    """Write a few private texts beside their sanitised ones, for those who may see private text; no report has them."""
    rows, part = read_part(job.shards, 0), 1
    while len(rows) < SHOWN and part < parts:  # a part of a small corpus has few users, or none
        rows, part = pa.concat_tables([rows, read_part(job.shards, part)]), part + 1
    places = np.sort(np.random.default_rng(_SEED).permutation(len(rows))[:SHOWN])
    drawn, coins = rows.take(places), mechanism.Coins(key, *job.release)
    texts = drawn["text"].to_pylist()
    after = job.sanitizer(key, coins).sanitise(texts, tags_of(drawn, coins))
    lines = [f"before: {one}\nafter:  {other}\n" for one, other in zip(texts, after, strict=True)]
    write_atomic(path, "\n".join(lines).encode())


def charts(found: Planned) -> list[Chart]:
    """Of the public table: how often words stay, by rank, and how many outcomes and inputs they have."""
    if not isinstance(found.mechanism, mechanism.SanText):
        return []
    table = found.mechanism.table
    words = np.unique(np.linspace(table.first, len(found.vocabulary) - 1, _SAMPLE).astype(np.int64))
    kept = np.sort(table.keep_rates[words - table.first])
    share = np.linspace(0, 1, len(words))
    out, into = np.sort(table.distinct_outcomes(words)), np.sort(table.distinct_inputs(words))
    groups = np.array_split(words, min(_GROUPS, len(words)))
    ranks = [(float(group.mean()), float(np.median(table.keep_rates[group - table.first]))) for group in groups]
    return [
        Chart(
            "kept",
            "N_x: how often a word comes out as itself",
            "share of words",
            "chance",
            {"words that can come out": _line(share, kept)},
            internal=False,
        ),
        Chart(
            "outcomes",
            "S_x and S*_y: distinct words in 1,000 draws of each word",
            "share of words",
            "words",
            {"outcomes of a word": _line(share, out), "words behind an outcome": _line(share, into)},
            internal=False,
        ),
        Chart(
            "ranks",
            "How often a word comes out as itself, by its rank",
            "rank by frequency",
            "chance",
            {"median": ranks},
            internal=False,
        ),
    ]


def _line(across: np.ndarray, up: np.ndarray) -> list[tuple[float, float]]:
    every = -(-len(across) // _POINTS)
    return [(float(x), float(y)) for x, y in zip(across[::every], up[::every], strict=True)]


def _pairs(job: SanitiseJob, parts: int, key: Key) -> Iterator[Pair]:
    """Documents before and after, in an order that a public seed draws; a part is read at a time."""
    words, coins, dice = documents.Words(job.words), mechanism.Coins(key, *job.release), np.random.default_rng(_SEED)
    for part in range(parts):
        rows = read_part(job.shards, part)
        drawn = rows.take(dice.permutation(len(rows))[:2000])
        ids, lengths = words.ids([documents.tidy(text) for text in drawn["text"].to_pylist()], job.config.max_tokens)
        tags = np.repeat(tags_of(drawn, coins), lengths)
        after = job.mechanism.draw(np.minimum(ids, words.unknown), tags, documents.places_in(lengths), coins)
        ends = np.cumsum(lengths)[:-1]
        for one, other in zip(np.split(ids, ends), np.split(after, ends), strict=True):
            if len(one):
                yield one, other
