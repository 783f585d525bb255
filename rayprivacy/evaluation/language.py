"""What can be counted in text: perplexity, Bleu, diversity, lengths and shared words.

Which of these may leave depends on their input, not on the formula. Perplexity and Bleu against held-out conversations
read private text, so they are internal figures. `synthetic_metrics` reads released text alone: it is post-processing
and free to share.

Lengths are in words (what `str.split` yields), over public bins: bins chosen from the data would reveal its extremes.

Vocabularies are of normal words: runs of letters, digits and underscores, in lower case and one Unicode form. Scripts
that are written without spaces have a word in each letter. The same words serve the search for copied passages (see
`memorisation`): a copy stays one when capitals, accents' encoding or punctuation change.

Perplexity under the public model is a check, not a goal: it should be near that of real text, since one common sentence
over and over is the least surprising text of all. The model scores a sample, at about 1,000 tokens a second and core.
"""

import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.figures import Figure, Measured, mean_figure
from rayprivacy.evaluation.settings import SCORED
from rayprivacy.evaluation.texts import sample
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, driver_threads, side_by_side

BLEU_TEXTS = 100
_BASE = "base"
_TOKENS = 64
_DOCUMENTS = 8  # read at once
_ROWS = 512
_SEED = 0  # public; of intervals
_Numbers = npt.NDArray[np.float64]
WORD_EDGES = (0, 1, 5, 10, 15, 20, 30, 50, 100)
# Thai, Lao, Tibetan, Burmese and Khmer; kana; Chinese characters, also those beyond 16 bits.
_NO_SPACES = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[^\W{_NO_SPACES}]+|(?!\W)[{_NO_SPACES}]")


def perplexity(total_nll: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood per token, in nats: sums go in, so shards can be added up first."""
    if tokens <= 0:
        raise ConfigError(f"perplexity over {tokens} tokens is undefined: score at least one token.")
    mean = total_nll / tokens
    if not 0 <= mean <= 700.0:
        raise ConfigError(f"the mean negative log-likelihood is {mean}: give a finite sum in nats, at least 0.")
    return math.exp(mean)


def bleu(hypotheses: Sequence[str], references: Sequence[str], order: int) -> float:
    """Corpus Bleu of sacrebleu, 0 to 100, one reference each: n-grams up to `order`, 13a tokens, exp smoothing, and
    effective order, for texts that all have fewer tokens. No texts at all score 0.0.
    """
    if len(hypotheses) != len(references):
        raise ConfigError(f"bleu has {len(hypotheses)} hypotheses and {len(references)} references: pair them up.")
    metric = _bleu_metric(order)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score) if hypotheses else 0.0


def _bleu_metric(order: int) -> Any:
    if order < 1:
        raise ConfigError(f"bleu order is {order}: give 1 or more, e.g. 4.")
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ConfigError("bleu needs sacrebleu: pip install 'rayprivacy[eval]'.") from None
    return BLEU(max_ngram_order=order, effective_order=True, smooth_method="exp", tokenize="13a", force=True)


def pool_bleu(hypotheses: Sequence[str], pool: Sequence[str], order: int, *, leave_one_out: bool = False) -> float:
    """Mean sentence Bleu of each text against a pool of references, 0 to 100 (as in `bleu`); with the texts as pool,
    each left out in turn, it is self-Bleu (Zhu et al., SIGIR 2018). Both rise with the pool: compare equal sizes only.
    """
    if leave_one_out and list(hypotheses) != list(pool):
        raise ConfigError("self-Bleu leaves each text out of the pool, and the pool is not the texts: give them twice.")
    metric = _bleu_metric(order)
    found = []
    for place, text in enumerate(hypotheses):
        references = [each for other, each in enumerate(pool) if not (leave_one_out and other == place)]
        if references:
            found.append(float(metric.sentence_score(text, references).score))
    return sum(found) / max(len(found), 1)


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Distinct word n-grams over all (Li et al., 2016), not across texts, or 0.0; compare equal sizes only."""
    if n < 1:
        raise ConfigError(f"distinct n is {n}: give 1 or more.")
    words = [text.split() for text in texts]
    grams = Counter(tuple(line[i : i + n]) for line in words for i in range(len(line) - n + 1))
    return len(grams) / grams.total() if grams else 0.0


def synthetic_metrics(texts: Sequence[str]) -> dict[str, object]:
    """What released text says of itself: size, diversity, lengths, shares of empty texts and of repetitions."""
    total = max(len(texts), 1)
    return {
        "texts": len(texts),
        **{f"distinct_{n}": distinct_n(texts, n) for n in (1, 2)},
        "words": length_summary(texts),
        "empty_share": sum(not text.strip() for text in texts) / total,
        "duplicate_share": (len(texts) - len(set(texts))) / total,
    }


def word_counts(texts: Sequence[str]) -> list[int]:
    """How many words each text has."""
    return [len(text.split()) for text in texts]


def length_summary(texts: Sequence[str]) -> Measured:
    """Mean, percentiles and histogram of the words per text; the last bin is open. No texts: all zero."""
    words = word_counts(texts)
    p5, p50, p95 = np.percentile(words or [0], [5, 50, 95])
    counts = [0] * len(WORD_EDGES)
    for length in words:
        counts[bisect_right(WORD_EDGES, length) - 1] += 1
    return {
        "unit": "words",
        "mean": sum(words) / max(len(words), 1),
        "p5": float(p5),
        "p50": float(p50),
        "p95": float(p95),
        "histogram": {"edges": list(WORD_EDGES), "counts": counts},
    }


def normal_words(text: str) -> list[str]:
    """The words of a text, case-folded and in Unicode NFKC.

    >>> normal_words("Don't PANIC!")
    ['don', 't', 'panic']
    >>> normal_words("我爱 AI"), normal_words("コ・ー")
    (['我', '爱', 'ai'], ['コ', 'ー'])
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def shared_words(real: Iterable[str], synthetic: Iterable[str]) -> dict[str, float]:
    """How much the vocabularies have in common."""
    ours = Counter(word for text in synthetic for word in normal_words(text))
    theirs = {word for text in real for word in normal_words(text)}
    either = len(theirs | ours.keys())
    new = sum(count for word, count in ours.items() if word not in theirs)
    return {
        "word_type_overlap": len(theirs & ours.keys()) / either if either else 0.0,
        "new_word_share": new / ours.total() if ours else 0.0,
    }


def public_perplexity(backbone: Backbone, texts: list[str], seed: int = 0) -> float:
    """Perplexity of at most `SCORED` texts under the base model, each cut to `_TOKENS` tokens."""
    drawn = [texts[place] for place in sample(len(texts), SCORED, seed)]
    documents = [backbone.document(text, _TOKENS - 2) for text in drawn]
    return perplexity(*documents_nll(backbone, documents, driver_threads()))


def diversity(texts: list[str], real: list[str], seed: int = 0) -> dict[str, float]:
    """Distinct n-grams, repeated texts, self-Bleu, and Bleu against real texts, at most `BLEU_TEXTS` on either side."""
    drawn = [texts[place] for place in sample(len(texts), BLEU_TEXTS, seed)]
    pool = [real[place] for place in sample(len(real), BLEU_TEXTS, seed + 1)]
    return {
        **{f"distinct_{n}": distinct_n(texts, n) for n in (1, 2, 3)},
        "duplicate_share": 1 - len(set(texts)) / max(len(texts), 1),
        "self_bleu_4": pool_bleu(drawn, drawn, 4, leave_one_out=True),
        "bleu_3": pool_bleu(drawn, pool, 3),
        "bleu_4": pool_bleu(drawn, pool, 4),
    }


def documents_nll(backbone: Backbone, documents: list[list[int]], threads: int = 1) -> tuple[float, int]:
    """Summed negative log-likelihood in nats of all tokens but the first of each document, and how many they are.

    By the logits that the model itself computes, which need not be a product of its states.
    """
    by_length = sorted(documents, key=len)
    batches = [by_length[start : start + _DOCUMENTS] for start in range(0, len(documents), _DOCUMENTS)]
    return sum(side_by_side(partial(_own_nll, backbone), batches, threads)), sum(map(len, documents)) - len(documents)


@torch.no_grad()
def _own_nll(backbone: Backbone, documents: list[list[int]]) -> float:
    # Padding comes after the text, where a causal model does not look: no mask is needed.
    longest, device = max(map(len, documents)), backbone.model.device
    ids = torch.tensor([each + [backbone.end] * (longest - len(each)) for each in documents], device=device)
    inside = torch.arange(1, longest, device=device) < torch.tensor([[len(each)] for each in documents], device=device)
    logits = backbone.model(input_ids=ids, use_cache=False).logits[:, :-1][inside].float()
    return float(torch.nn.functional.cross_entropy(logits, ids[:, 1:][inside], reduction="sum"))


def row_nll(hidden: torch.Tensor, rows: Encoded, head: torch.Tensor, threads: int = 1) -> torch.Tensor:
    """Summed negative log-likelihood in nats of the next tokens in each row, float64 [rows], on `threads`.

    The logits are `hidden @ head.T`.
    """
    keep = rows.predicts
    pieces = zip(hidden[:, :-1][keep].split(_ROWS), rows.ids[:, 1:][keep].split(_ROWS), strict=True)
    found = side_by_side(partial(_nll, head), pieces, threads)
    row = torch.nonzero(keep)[:, 0]
    return torch.zeros(len(rows), dtype=torch.float64).index_add_(0, row, torch.cat([torch.zeros(0), *found]).double())


@torch.no_grad()
def _nll(head: torch.Tensor, examples: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    states, wanted = examples
    return torch.nn.functional.cross_entropy(states.float() @ head.T, wanted, reduction="none")


def perplexity_figures(nll: Mapping[str, _Numbers], tokens: _Numbers, users: npt.NDArray[np.int64]) -> Measured:
    """Perplexity of each model, and of each over that of the base (resampled together), with 95% intervals where there
    are two users; `nll` holds, by model, each piece's negative log-likelihood in nats over its `tokens`, [pieces].
    """
    found: Measured = {"perplexity": {}, "perplexity_interval": {}, "over_base": {}}
    for name, sums in nll.items():
        found["perplexity"][name] = perplexity(float(sums.sum()), int(tokens.sum()))
        if interval := _interval(mean_figure(sums / tokens, users, _SEED, tokens)):
            found["perplexity_interval"][name] = interval
        if name != _BASE and _BASE in nll:
            figure = mean_figure((sums - nll[_BASE]) / tokens, users, _SEED, tokens)
            found["over_base"][name] = {"ratio": math.exp(figure.value), "interval": _interval(figure)}
    return found


def _interval(mean: Figure) -> list[float] | None:
    if mean.low is None or mean.high is None:
        return None
    return [math.exp(mean.low), math.exp(mean.high)]
