"""Perplexity, Bleu and diversity: is the text fluent, near a reference, and not one sentence said over and over?

Which of these may leave the house depends on their input, not on the formula. Perplexity and Bleu against held-out
conversations read private text, so they are internal figures. `synthetic_metrics` reads released text alone: it is
post-processing and free to share.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.lengths import length_summary

MAX_MEAN_NLL = 700.0


def perplexity(total_nll: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood per token, in nats: sums go in, so shards can be added up first.

    >>> round(perplexity(2 * math.log(8), 2), 9)
    8.0

    Raises:
        ConfigError: no tokens, or a sum that is negative, not finite or too large for a likelihood.
    """
    if tokens <= 0:
        raise ConfigError(f"perplexity over {tokens} tokens is undefined: score at least one token.")
    mean = total_nll / tokens
    if not 0 <= mean <= MAX_MEAN_NLL:
        raise ConfigError(f"the mean negative log-likelihood is {mean}: give a finite sum in nats, at least 0.")
    return math.exp(mean)


def bleu(hypotheses: Sequence[str], references: Sequence[str], order: int) -> float:
    """Corpus Bleu of sacrebleu, 0 to 100, one reference each: n-grams up to `order`, 13a tokens, exp smoothing.

    Effective order is on: it matters only where no hypothesis has `order` tokens, which then counts the orders there
    are in place of scoring 0. No texts at all score 0.0.

    Raises:
        ConfigError: the lists differ in length, the order is below 1, or sacrebleu is not installed.
    """
    if len(hypotheses) != len(references):
        raise ConfigError(f"bleu has {len(hypotheses)} hypotheses and {len(references)} references: pair them up.")
    metric = _bleu_metric(order)
    if not hypotheses:
        return 0.0
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def _bleu_metric(order: int) -> Any:
    if order < 1:
        raise ConfigError(f"bleu order is {order}: give 1 or more, e.g. 4.")
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ConfigError("bleu needs sacrebleu: pip install 'rayprivacy[eval]'.") from None
    return BLEU(max_ngram_order=order, effective_order=True, smooth_method="exp", tokenize="13a", force=True)


def pool_bleu(hypotheses: Sequence[str], pool: Sequence[str], order: int, *, leave_one_out: bool = False) -> float:
    """Mean sentence Bleu of each text against a whole pool of references, 0 to 100 (sacrebleu, as in `bleu`).

    With the texts themselves as the pool, each left out in its turn, this is self-Bleu (Zhu et al., SIGIR 2018): high
    where texts repeat each other. Both figures rise with the size of the pool: compare equal sizes only.

    Raises:
        ConfigError: the pool is not the texts that are left out, the order is below 1, or sacrebleu is missing.
    """
    if leave_one_out and list(hypotheses) != list(pool):
        raise ConfigError("self-Bleu leaves each text out of the pool, and the pool is not the texts: give them twice.")
    metric, found = _bleu_metric(order), []
    for place, text in enumerate(hypotheses):
        references = [each for other, each in enumerate(pool) if not (leave_one_out and other == place)]
        if references:
            found.append(float(metric.sentence_score(text, references).score))
    return sum(found) / max(len(found), 1)


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Distinct word n-grams over all word n-grams of the corpus (Li et al., 2016); 0.0 when there are none.

    N-grams do not cross texts; words are split at white space and compared as written. The figure falls as a corpus
    grows, so compare corpora of the same size only.

    >>> distinct_n(["a a b"], 1) == 2 / 3
    True

    Raises:
        ConfigError: n is below 1.
    """
    if n < 1:
        raise ConfigError(f"distinct n is {n}: give 1 or more.")
    words = [text.split() for text in texts]
    grams = Counter(tuple(line[i : i + n]) for line in words for i in range(len(line) - n + 1))
    return len(grams) / grams.total() if grams else 0.0


def synthetic_metrics(texts: Sequence[str]) -> dict[str, Any]:
    """What the released text says about itself: size, diversity, lengths, shares of empty and repeated texts.

    `duplicate_share` counts each text that equals an earlier one; no texts give zeros.
    """
    total = max(len(texts), 1)
    return {
        "texts": len(texts),
        "distinct_1": distinct_n(texts, 1),
        "distinct_2": distinct_n(texts, 2),
        "words": length_summary(texts),
        "empty_share": sum(not text.strip() for text in texts) / total,
        "duplicate_share": (len(texts) - len(set(texts))) / total,
    }
