"""Matching: released text follows the corpus in topics, lengths and released words, by one noisy vote of the users.

    candidates of the released model -> topics by meaning, lengths in words             (public)
    users -> shares of their texts by topic and by length -> RELEASE GATE, one charge   (released)
    candidates -> as many as are wanted, in these shares -> released text               (free)

With `words`, each text also votes for the rarest word in it of those that a profile released, or for none of them. They
are public by then, as topics are; how many texts hold them is not, and a profile counts users and not texts. Words that
candidates lack are then written behind openers (`blocks.openers`), before the choice.

Topics: text of the released model is embedded by a public model and clustered, and each private text votes for the
cluster nearest to it (Yu et al., ICML 2024, "Privacy-Preserving Instructions for Aligning Large Language Models"). Ours
votes for a length besides.

Votes: one Ray task for each part file returns whole numbers. Only part numbers travel, of all parts, whether anybody is
in them or not. A task that runs again after a crash returns the same sums: nothing in it is random, and the release
gate alone draws noise. The texts of a unit are embedded by themselves. In a batch with others the last bits of an
embedding would depend on these, and a text that lies between two topics could change its vote because somebody else is
there.

Cuts: a sampled text goes on until the model ends it or a limit is reached, and a model of public text ends late. Any
beginning of a text that ends with a sentence is a text, too. For each text one beginning is drawn, or the whole, with
chances by raking: each text weighs the same, and the expected lengths follow the shares as far as there are sentences
that end there. Before the raking a beginning weighs a quarter of the whole text, so that texts whose lengths are right
already mostly stay as they are.

Choice: candidates get weights by raking, also called iterative proportional fitting (Deming and Stephan, 1940): the
weights are scaled to one margin after the other, in turn. No text is taken twice, so that no weight may exceed one
text: what is over is cut off before the next turn, and goes to other candidates. Then texts are drawn by systematic
sampling (Madow, 1949), in which each is taken with a probability equal to its weight, and each run of candidates in the
order of topic and length gets its share to within one text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load, save

from rayprivacy.blocks.match_plan import MATCH, MOST_WORDS, PARTS_VOTED, MatchConfig, profile_of
from rayprivacy.blocks.openers import missing, opened
from rayprivacy.core import errors, files, private
from rayprivacy.core.console import Told, nobody
from rayprivacy.corpus.manifest import owners_of, part_tables
from rayprivacy.evaluation.fidelity import total_variation
from rayprivacy.evaluation.shape import LENGTHS, Shape, lengths, rarest
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.models.sentences import SentenceModel, packaged_on_one_thread
from rayprivacy.release.histogram import Margins, summed
from rayprivacy.runs import directory, method
from rayprivacy.runs.context import RunContext
from rayprivacy.work.mapping import on_numbers

NAMES = ("topics", "lengths", "words")
TURNS = 100
_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019)\]*]*(?=\s)|(?=\n)")
_OF_BEGINNING = 0.25
_CUT_TURNS = 50
_TINY = 1e-300
_STEP = "voting for topics and lengths"
_SEAL = private.Seal(errors.ReleaseError, "nothing was charged for it, run again with --resume")
Shares = npt.NDArray[np.float64]
Sums = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int64]


def text_file(run: directory.Run[Any], match: MatchConfig | None) -> Path:
    """Where a method writes its texts: the release itself, or the candidates that are to be matched."""
    return run.root / method.SYNTHETIC if match is None else run.public("candidates.parquet")


def match_texts(
    context: RunContext[Any], match: MatchConfig, count: int, codes: Codes | None = None, code_shares: Any = None
) -> dict[str, Any]:
    """Vote, or find the votes released, and write `count` of the candidates in `text_file` as the released text.

    The shares of control codes, float64 [codes], stay as they are. Returned are figures for metrics.json: how far the
    lengths of the candidates, the topics of what they were cut to, and both of the kept texts are from the votes; and
    where users voted for words, by word: the share that the votes say, and those of the candidates and the kept texts.

    Raises:
        BudgetRefusedError: the account has less left than the votes cost.
    """
    codes = codes or Codes(CodesConfig(), ())
    with context.stage(MATCH):
        candidates, seed = pq.read_table(text_file(context.run, match)), context.recipe.seed
        sentences = SentenceModel.packaged()
        shape = _shape(context, match, candidates["text"].to_pylist(), sentences)
        margins: Margins = replace(context.plan.stage(MATCH).mechanism, blocks=shape.blocks)
        question = shape.question(sentences)
        votes = _votes_of_corpus(context, shape, margins, question)
        wanted = margins.split(context.release_histogram(MATCH, margins, votes, question=question).value)
        candidates = _with_words(context, match, shape, candidates, wanted, codes)
        whole = candidates["text"].to_pylist()
        texts = cut(whole, wanted[1], seed)
        cells = shape.cells(texts, sentences)
        sides, shares = cells, wanted
        if codes.columns:
            coded = [[codes.index(row)] for row in candidates.select(codes.columns).to_pylist()]
            sides, shares = np.hstack([cells, np.array(coded, np.int64)]), [*wanted, code_shares]
        places = _kept(texts, sides, shares, count, seed)
        _write(candidates, texts, places, context.run.root / method.SYNTHETIC)
        before = np.column_stack([cells[:, :1], lengths(whole), cells[:, 2:]])
        found = [shares_of(each, shape.blocks) for each in (before, cells[places])]
    of_words = [np.round(each[-1][1:], 4).tolist() for each in (wanted[: len(shape.blocks)], *found)]
    words = {"words": [*zip(shape.words, *of_words, strict=True)]} if shape.words else {}
    return {"candidates": len(whole), "total_variation_to_votes": _distances(wanted, *found), **words}


def _with_words(
    context: RunContext[Any], match: MatchConfig, shape: Shape, candidates: pa.Table, wanted: list[Shares], codes: Codes
) -> pa.Table:
    """The candidates, and as many more as lack a released word to have what the votes say of it."""
    if not shape.words:
        return candidates
    texts = cut(candidates["text"].to_pylist(), wanted[1], context.recipe.seed)
    lacking = missing(wanted[-1], rarest(texts, shape.words))[1:]
    if not lacking.any():
        return candidates
    more = opened(context, text_file(context.run, match), shape.words, lacking, codes)
    return pa.concat_tables([candidates, more])


def exhibits(figures: Mapping[str, Any]) -> list[method.Table]:
    """What users voted for and what the text has of it, by the figures of `match_texts`: all of it may be shown."""
    distances = [
        (name, *(f"{sides[side]:.3f}" for side in ("candidates", "released")))
        for name, sides in figures["total_variation_to_votes"].items()
    ]
    ours = ("candidates", "released text")
    tables = [method.Table("Total variation from users' votes", ("of", *ours), distances, internal=False)]
    if words := figures.get("words"):
        rows = [(word, *(f"{share:.3f}" for share in shares)) for word, *shares in words]
        title = "Released words: share of texts of which each is the rarest"
        tables.append(method.Table(title, ("word", "votes, with noise", *ours), rows, internal=False))
    return tables


def _kept(texts: list[str], cells: Cells, shares: list[Shares], count: int, seed: int) -> Cells:
    """The places of the texts that are kept; equal ones, such as many that are cut to one word, only if others lack."""
    first = {text: place for place, text in reversed(list(enumerate(texts)))}
    different = np.sort(list(first.values())) if len(first) >= count else np.arange(len(texts))
    return different[chosen(raked(cells[different], shares, count), cells[different], seed)]


def _shape(context: RunContext[Any], match: MatchConfig, whole: list[str], sentences: SentenceModel) -> "Shape":
    """The topics of the candidates, cut as if all lengths were wanted alike: no votes are known yet."""
    path = context.run.public(f"shape-{private.digest_json([whole, match.model_dump()])[:16]}.safetensors")
    if not path.exists():
        texts = cut(whole, np.full(LENGTHS, 1 / LENGTHS), context.recipe.seed)
        files.write_atomic(path, save({"centres": Shape.of(texts, sentences, match.topics).centres}), files.SHARED)
    return Shape(load(path.read_bytes())["centres"], _words(context, match))


def _words(context: RunContext[Any], match: MatchConfig) -> tuple[str, ...]:
    """The released words that users vote for as well, of the file that the run began with."""
    if match.words is None:
        return ()
    profile = profile_of(match.words)
    context.run.bind(profile=profile.digest)
    context.profile = f"{profile.release_id}, whose file has digest {profile.digest}"
    return tuple(each.word for each in profile.words[:MOST_WORDS])


def _votes_of_corpus(context: RunContext[Any], shape: "Shape", margins: Margins, question: str) -> private.Private[Any]:
    """The private sums, which are kept: a run that is resumed does not embed the corpus again."""
    made_of = [context.corpus.corpus_digest(context.key), question, margins.parameters]
    path = context.run.private(f"votes-{private.digest_json(made_of)[:16]}")
    if path.exists():
        return private.Private(np.frombuffer(path.read_bytes(), np.int64))
    votes = shape_votes(context.shards, context.plan.parts, shape, margins, context.counter(PARTS_VOTED))
    files.write_atomic(path, votes.reveal().tobytes())
    return votes


def _write(candidates: pa.Table, texts: list[str], places: Cells, path: Path) -> None:
    column = candidates.column_names.index("text")
    kept = candidates.set_column(column, "text", pa.array(texts, pa.large_string())).take(places)
    pq.write_table(kept, path.with_suffix(".tmp"), compression="zstd")
    path.with_suffix(".tmp").replace(path)


def _distances(wanted: list[Shares], before: list[Shares], after: list[Shares]) -> Mapping[str, Mapping[str, float]]:
    return {
        name: {"candidates": total_variation(votes, old), "released": total_variation(votes, new)}
        for name, votes, old, new in zip(NAMES[: len(wanted)], wanted, before, after, strict=True)
    }


def shape_votes(shards: Path, parts: int, shape: Shape, margins: Margins, told: Told = nobody) -> private.Private[Sums]:
    """The summed votes [cells] of all users (or records) of the sharded corpus, a Ray task for each part.

    All nodes see the folder of shards; `margins` bounds what one unit adds; `told` hears how many parts are done.

    Raises:
        ReleaseError: a task failed; nothing was charged.
    """
    total = np.zeros(margins.cells, dtype=np.int64)
    common = (shards.absolute(), shape, margins)
    for done, (_, sums) in enumerate(on_numbers(_votes_of_part, common, range(parts), _STEP, _SEAL), start=1):
        total += sums
        told(done)
    return private.Private(total)


@_SEAL.around(_STEP)
def _votes_of_part(common: tuple[Path, Shape, Margins], part: int) -> Sums:
    shards, shape, margins = common
    return part_votes(shards, part, shape, margins, packaged_on_one_thread())


def part_votes(shards: Path, part: int, shape: Shape, margins: Margins, model: SentenceModel) -> Sums:
    """The summed votes [cells] of one part of the corpus, of which one file at a time is in memory."""
    total = np.zeros(margins.cells, np.int64)
    for rows in part_tables(shards, part):
        total += _votes(rows, shape, margins, model)
    return total


def _votes(rows: pa.Table, shape: Shape, margins: Margins, model: SentenceModel) -> Sums:
    owners, texts = owners_of(rows, margins.unit), np.array(rows["text"].to_pylist(), dtype=object)
    cells = np.empty((len(rows), len(margins.blocks)), np.int64)
    for own in np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1]):
        cells[own] = shape.cells(texts[own].tolist(), model)
    return summed(margins, owners, cells + np.cumsum((0, *margins.blocks[:-1])))


def beginnings(text: str) -> list[str]:
    """The beginnings of a text that end with a sentence or a line, and last the whole text.

    >>> beginnings("Yes! I do. And you")
    ['Yes!', 'Yes! I do.', 'Yes! I do. And you']
    """
    ends = (text[: place.end()].strip() for place in _END.finditer(text))
    return list(dict.fromkeys([*filter(None, ends), text]))


def cut(texts: Sequence[str], shares: npt.NDArray[np.float64], seed: int) -> list[str]:
    """One beginning, or the whole, of each text, so that lengths have the wanted shares, by a public seed."""
    choices = [beginnings(text) for text in texts]
    counts = np.array([len(each) for each in choices])
    owners = np.repeat(np.arange(len(texts)), counts)
    flat = [beginning for each in choices for beginning in each]
    bins = lengths(flat)
    weights = np.full(len(flat), _OF_BEGINNING)
    last = np.cumsum(counts) - 1
    weights[last] = 1.0
    for _ in range(_CUT_TURNS):
        held = np.bincount(bins, weights, minlength=len(shares))
        weights *= (len(texts) * shares / np.maximum(held, _TINY))[bins]
        weights = np.maximum(weights, _TINY)  # a text all of whose lengths nobody wants is kept, and weighs little
        weights /= np.bincount(owners, weights)[owners]
    draws = np.random.default_rng(seed).random(len(texts))
    ends = np.cumsum(weights)  # text i holds the stretch from i to i + 1
    taken = np.clip(np.searchsorted(ends, np.arange(len(texts)) + draws, side="right"), last - counts + 1, last)
    return [flat[place] for place in taken]


def raked(cells: Cells, margins: Sequence[Shares], count: int) -> Shares:
    """Weights [candidates] from 0 to 1 that add up to `count`, whose margins are as near to the given ones as they get.

    The cells, [candidates, margins], are those of each candidate in each margin. One without candidates, or with fewer
    than it asks for, leaves its share to the others. All weights are 1 where there are no more candidates than `count`.
    """
    if count >= len(cells):
        return np.ones(len(cells))
    weights = np.full(len(cells), count / len(cells))
    for _ in range(TURNS):
        for column, shares in zip(cells.T, margins, strict=True):
            held = np.bincount(column, weights, minlength=len(shares))
            weights = weights * (count * shares / np.maximum(held, _TINY))[column]
        weights = np.minimum(weights, 1)
        room = 1 - weights  # of which all take one share, so that weights add up to the count again
        weights = np.asarray(weights + room * max(count - weights.sum(), 0.0) / max(room.sum(), _TINY))
    return weights


def chosen(weights: Shares, cells: Cells, seed: int) -> Cells:
    """The places of the candidates that are taken, in their order: as many as the weights add up to, a whole number."""
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(len(weights))
    order = shuffled[np.lexsort(cells[shuffled].T[::-1])]
    ends = np.cumsum(weights[order])
    ticks = draw.random() + np.arange(round(float(ends[-1])))
    return np.sort(order[np.minimum(np.searchsorted(ends, ticks, side="right"), len(order) - 1)])


def shares_of(cells: Cells, blocks: Sequence[int]) -> list[Shares]:
    """The share of texts in each cell of each margin."""
    counted = zip(cells.T, blocks, strict=True)
    return [np.bincount(column, minlength=size) / max(len(cells), 1) for column, size in counted]
