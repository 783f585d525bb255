"""What is measured of a sanitised corpus beside its private text: attacks, and pairs of texts; all of it internal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayprivacy.auditing.inference import Pair, attack
from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.corpus.parts import read_part
from rayprivacy.methods.santext.mechanisms import Planned
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.exhibits import Chart, Table
from rayprivacy.runs.sealing import sealed
from rayprivacy.sanitize.coins import Coins
from rayprivacy.sanitize.documents import places_in
from rayprivacy.sanitize.job import Job, tags_of
from rayprivacy.sanitize.mechanism import SanText
from rayprivacy.sanitize.posterior import log_likelihoods, public_prior
from rayprivacy.sanitize.tokens import Words, tidy

SHOWN = 12  # pairs of texts
_SEED = 0
_SAMPLE, _POINTS, _GROUPS = (
    400,
    50,
    20,
)  # words of which scores are drawn, points of a line, and groups by rank, at most
ATTACKED = {
    "mask": "Masked word, from the sanitised words before (the paper's attack)",
    "identity": "The sanitised word itself",
    "bayes": "Bayes, with the public table and frequencies",
    "context": "Bayes, with the table and a language model",
}


@sealed("attacking sanitised text")
def attacks(job: Job, parts: int, found: Planned, backbone: Backbone, key: Key, words: int) -> dict[str, Any]:
    """Success of four attacks on about `words` words of documents that a public seed draws."""
    pairs, size = [], 0
    for pair in _pairs(job, parts, key):
        pairs.append(pair)
        size += int((pair.before < len(found.vocabulary)).sum())
        if size >= words:
            break
    prior = public_prior(len(found.vocabulary))
    results = attack(
        pairs, found.vocabulary.words, lambda after: log_likelihoods(found.mechanism, after), prior, backbone
    )
    figures = {name: {"rate": each.rate, "interval": each.interval} for name, each in results.items()}
    return {"releasable": False, "words": next(iter(results.values())).words, "success": figures}


def attack_table(measured: dict[str, Any]) -> Table:
    """The four attacks, for the report."""
    rows = [
        (name, f"{each['rate']:.1%}", "{:.1%} to {:.1%}".format(*each["interval"]))
        for key, name in ATTACKED.items()
        for each in (measured["success"][key],)
    ]
    title = f"Original words that are guessed, of {measured['words']}"
    return Table(title, ("Attack", "Guessed", "95% interval"), rows, internal=True)


@sealed("writing texts before and after")
def write_pairs(job: Job, parts: int, key: Key, path: Path) -> None:
    """Write a few private texts beside their sanitised ones, for those who may see private text.

    Not into the report: that is copied to object storage, and has figures of private text, never the text.
    """
    rows, part = read_part(job.shards, 0), 1
    while len(rows) < SHOWN and part < parts:  # a part of a small corpus has few users, or none
        rows, part = pa.concat_tables([rows, read_part(job.shards, part)]), part + 1
    places = np.sort(np.random.default_rng(_SEED).permutation(len(rows))[:SHOWN])
    drawn, coins = rows.take(places), Coins(key, *job.release)
    texts = drawn["text"].to_pylist()
    after = job.sanitizer(key, coins).sanitise(texts, tags_of(drawn, coins))
    lines = [f"before: {one}\nafter:  {other}\n" for one, other in zip(texts, after, strict=True)]
    write_atomic(path, "\n".join(lines).encode())


def charts(found: Planned) -> list[Chart]:
    """Of the public table: how often words stay, by rank, and how many outcomes and inputs they have."""
    if not isinstance(found.mechanism, SanText):
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


def _pairs(job: Job, parts: int, key: Key) -> Iterator[Pair]:
    """Documents before and after, in an order that a public seed draws; a part is read at a time."""
    words, coins, dice = Words(job.words), Coins(key, *job.release), np.random.default_rng(_SEED)
    for part in range(parts):
        rows = read_part(job.shards, part)
        drawn = rows.take(dice.permutation(len(rows))[:2000])
        ids, lengths = words.ids([tidy(text) for text in drawn["text"].to_pylist()], job.config.max_tokens)
        tags = np.repeat(tags_of(drawn, coins), lengths)
        after = job.mechanism.draw(np.minimum(ids, words.unknown), tags, places_in(lengths), coins)
        ends = np.cumsum(lengths)[:-1]
        for one, other in zip(np.split(ids, ends), np.split(after, ends), strict=True):
            if len(one):
                yield Pair(one, other)
