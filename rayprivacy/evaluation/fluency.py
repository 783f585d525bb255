"""How text reads to the public base model, and how much it repeats itself and the words of real text.

Perplexity under the public model is a check, not a goal: text that says one common sentence over and over is the
least surprising of all. It should be near that of real text, which is the reference. The model scores a sample, since
its full depth takes a second for about 2,000 tokens on two cores.
"""

from functools import partial

import torch

from rayprivacy.evaluation.language import distinct_n, perplexity, pool_bleu
from rayprivacy.evaluation.settings import SCORED
from rayprivacy.evaluation.texts import sample
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode
from rayprivacy.models.side_by_side import driver_threads, side_by_side

ROW_TOKENS = 64
BLEU_TEXTS = 100
_ROWS = 512


def public_perplexity(backbone: Backbone, texts: list[str], seed: int = 0) -> float:
    """Perplexity of at most `SCORED` texts under the base model, each cut to fit a row of `ROW_TOKENS` tokens."""
    drawn = [texts[place] for place in sample(len(texts), SCORED, seed)]
    documents = [backbone.document(text, ROW_TOKENS - 2) for text in drawn]
    rows = encode(backbone, documents, ROW_TOKENS, len(documents), threads=driver_threads())
    return perplexity(*total_nll(rows.hidden, rows, backbone.head, driver_threads()))


def diversity(texts: list[str], real: list[str], seed: int = 0) -> dict[str, float]:
    """Distinct n-grams, repeated texts, self-Bleu, and Bleu against real texts as references.

    Both kinds of Bleu compare at most `BLEU_TEXTS` texts with at most `BLEU_TEXTS` others.
    """
    drawn = [texts[place] for place in sample(len(texts), BLEU_TEXTS, seed)]
    pool = [real[place] for place in sample(len(real), BLEU_TEXTS, seed + 1)]
    return {
        **{f"distinct_{n}": distinct_n(texts, n) for n in (1, 2, 3)},
        "duplicate_share": 1 - len(set(texts)) / max(len(texts), 1),
        "self_bleu_4": pool_bleu(drawn, drawn, 4, leave_one_out=True),
        "bleu_3": pool_bleu(drawn, pool, 3),
        "bleu_4": pool_bleu(drawn, pool, 4),
    }


def total_nll(hidden: torch.Tensor, rows: Encoded, head: torch.Tensor, threads: int = 1) -> tuple[float, int]:
    """Negative log-likelihood of all next tokens under the full vocabulary, in nats, summed; and how many they are.

    `hidden` are the model's states, [rows, row_tokens, width], and `hidden @ head.T` its logits.
    """
    return float(row_nll(hidden, rows, head, threads).sum()), int(rows.predicts.sum())


def row_nll(hidden: torch.Tensor, rows: Encoded, head: torch.Tensor, threads: int = 1) -> torch.Tensor:
    """The same for each row, float64 [rows]; `threads` work at it."""
    keep = rows.predicts
    pieces = zip(hidden[:, :-1][keep].split(_ROWS), rows.ids[:, 1:][keep].split(_ROWS), strict=True)
    found = side_by_side(partial(_nll, head), pieces, threads)
    row = torch.nonzero(keep)[:, 0]
    return torch.zeros(len(rows), dtype=torch.float64).index_add_(0, row, torch.cat([torch.zeros(0), *found]).double())


@torch.no_grad()
def _nll(head: torch.Tensor, examples: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    states, wanted = examples
    return torch.nn.functional.cross_entropy(states.float() @ head.T, wanted, reduction="none")
