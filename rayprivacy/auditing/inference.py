"""Guessing the original words of a sanitised text: four attacks, the strongest last.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from rayprivacy.models.backbone import Backbone

Ids = npt.NDArray[np.integer]
Matrix = npt.NDArray[np.float64]
Likelihoods = Callable[[Ids], Matrix]
ATTACKS = ("mask", "identity", "bayes", "context")
TRUST = 0.3
_AT_ONCE = 64  # positions whose words are compared at once, [positions, vocabulary]


@dataclass(frozen=True)
class Pair:
    """A document before and after: ids of its words, and of their outcomes, one for one."""

    before: Ids
    after: Ids


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
    for pair in pairs:
        known = np.flatnonzero((pair.before < len(spelled)) & (pair.after < len(spelled)))
        words += len(known)
        if not len(known):
            continue
        context = reader.log_probabilities(pair.after)
        for start in range(0, len(known), _AT_ONCE):
            places = known[start : start + _AT_ONCE]
            before, after = pair.before[places], pair.after[places]
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
        found: list[int] = self.backbone.tokenizer.encode(text, add_special_tokens=False)
        return found

    @cached_property
    def _first(self) -> Ids:
        """The first piece of every word."""
        return np.array([self._encoded(word)[0] for word in range(len(self.spelled))], dtype=np.int64)

    @cached_property
    def _shares(self) -> Matrix:
        """ln of the share of each word among the words that begin with the same piece."""
        totals = np.zeros(int(self._first.max()) + 1)
        np.add.at(totals, self._first, np.exp(self.prior))
        return np.asarray(self.prior - np.log(totals[self._first]))
