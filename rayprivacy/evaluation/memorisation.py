"""Memorisation, what synthetic text repeats of private text: copied passages and distances, beside those of a control.

Small talk is near other small talk whoever wrote it. So what synthetic texts show is set beside what HELD-OUT real
texts show, whose users the model that wrote the synthetic text has never seen: their 8-grams, runs and distances to
real text are chance and common language. If synthetic text is closer to the real text than held-out text is, common
language cannot explain it: the model has memorised something. The reverse proves nothing: these figures look at nearest
neighbours and copied words, and a differential-privacy certificate bounds what they cannot see.

`nearer_to_real` asks each synthetic text which is nearer: the real texts or equally many held-out ones. A model that
learnt the language, not the people, answers one half.

`shared_runs` finds, for each synthetic text, the longest run of words that also stands in one real text. Runs of length
n + 1 extend runs of length n. So all places where a run of the present length starts are kept, for both corpora
together; those whose run occurs in one corpus only are dropped, and the rest is extended by a word. What is left at
n = 8 are the shared 8-grams; when nothing is left, every longest run is known. The work is the number of places that
survive, and most are gone after five words, so all real texts are searched and not a sample: a copy of a text that was
not drawn is a copy too. They are searched block by block, so that one block of them is in memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.fidelity import nearest_distances
from rayprivacy.evaluation.figures import Figure, FigureRow, mean_figure, paired
from rayprivacy.evaluation.language import normal_words
from rayprivacy.evaluation.texts import Texts, sample

GRAM = 8
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]
_Matrix = npt.NDArray[np.floating]
_Distances = npt.NDArray[np.float64]
_GROUP = "memorisation"
_OF_GRAMS = (f"shared_{GRAM}gram_texts", f"shared_{GRAM}gram_share", "copied_texts")
_OF_RUNS = ("longest_run_mean", "longest_run_p95", "longest_run_max")


@dataclass(frozen=True)
class Runs:
    """What texts share with real ones: words, those of the longest run, and how many `GRAM`-word runs."""

    words: _Ints
    longest: _Ints
    grams: _Ints

    def part(self, texts: slice) -> "Runs":
        """Those of some texts."""
        return Runs(self.words[texts], self.longest[texts], self.grams[texts])

    @property
    def copied(self) -> _Bools:
        """Whether all of a text stands in a real one, as the whole of it or as a part."""
        return np.asarray((self.longest == self.words) & (self.words > 0))

    @property
    def long_enough(self) -> _Bools:
        """Whether a text has a run of `GRAM` words at all; shorter ones cannot show a copy, they are small talk."""
        return self.words >= GRAM

    @property
    def gram_share(self) -> _Distances:
        """The shared runs of `GRAM` words over all of the text's; 0 for a shorter text."""
        return np.asarray(self.grams / np.maximum(self.words - GRAM + 1, 1), float)


def shared_runs(texts: Sequence[str], real: Iterable[Sequence[str]]) -> Runs:
    """Find the longest run of every text that it shares with the real texts, given in blocks.

    >>> found = shared_runs(["I like green tea a lot"], [["do you LIKE green tea?"], ["a lot"]])
    >>> found.longest.tolist(), found.words.tolist()
    ([3], [6])
    """
    _, owner = _numbered(texts)
    longest, shared = np.zeros(len(texts), np.int64), np.zeros(len(owner), np.bool_)
    for block in real:
        _search(texts, block, longest, shared)
    words, grams = (np.bincount(each, minlength=len(texts)) for each in (owner, owner[shared]))
    return Runs(words, longest, grams)


def _search(texts: Sequence[str], block: Sequence[str], longest: _Ints, shared: _Bools) -> None:
    """Raise `longest` to what each text shares with a block, and mark where shared runs of `GRAM` words start."""
    ids, owner = _numbered([*texts, *block])
    starts = np.arange(len(ids))
    run = ids
    length = 1
    while len(starts):
        starts, run = _in_both(starts, run, owner[starts] < len(texts))
        ours = starts[owner[starts] < len(texts)]
        longest[owner[ours]] = np.maximum(longest[owner[ours]], length)
        if length == GRAM:
            shared[ours] = True  # the texts are in front: their places are the same for every block
        starts, run = _extended(starts, run, length, ids, owner)
        length += 1


def _numbered(texts: Sequence[str]) -> tuple[_Ints, _Ints]:
    """All words in a row as numbers, and the text that each belongs to."""
    known: dict[str, int] = {}
    ids: list[int] = []
    lengths = []
    for text in texts:
        words = normal_words(text)
        ids += [known.setdefault(word, len(known)) for word in words]
        lengths.append(len(words))
    return np.array(ids, np.int64), np.repeat(np.arange(len(texts)), np.array(lengths, np.int64))


def _in_both(starts: _Ints, run: _Ints, ours: _Bools) -> tuple[_Ints, _Ints]:
    """The places whose run occurs on both sides, with their runs numbered anew."""
    _, run = np.unique(run, return_inverse=True)
    count = int(run.max(initial=-1)) + 1
    both = (np.bincount(run[ours], minlength=count) > 0) & (np.bincount(run[~ours], minlength=count) > 0)
    return starts[both[run]], run[both[run]]


def _extended(starts: _Ints, run: _Ints, length: int, ids: _Ints, owner: _Ints) -> tuple[_Ints, _Ints]:
    """One word more, where the text goes on."""
    last = np.minimum(starts + length, len(ids) - 1)
    goes_on = (starts + length < len(ids)) & (owner[last] == owner[starts])
    starts, run = starts[goes_on], run[goes_on]
    return starts, run * (int(ids.max(initial=0)) + 1) + ids[starts + length]


@dataclass(frozen=True)
class Features:
    """Features of length 1 in one embedding; there are none of held-out texts where there are no such texts."""

    real: _Matrix
    synthetic: _Matrix
    holdout: _Matrix | None


def run_rows(real: Iterable[Sequence[str]], synthetic: Texts, holdout: Texts | None, seed: int = 0) -> list[FigureRow]:
    """Copied words of synthetic and held-out texts in all real ones, by blocks; short ones count in runs only."""
    control = holdout.texts if holdout is not None else []
    found = shared_runs([*synthetic.texts, *control], real)
    ours = _figures(found.part(slice(len(synthetic))), synthetic, seed)
    theirs = None if holdout is None else _figures(found.part(slice(len(synthetic), None)), holdout, seed)
    return paired(_GROUP, dict.fromkeys((*_OF_GRAMS, *_OF_RUNS), "near"), ours, theirs)


def _figures(found: Runs, texts: Texts, seed: int) -> dict[str, Figure]:
    long = found.long_enough
    each = (found.grams > 0, found.gram_share, found.copied)
    of_grams = [mean_figure(values[long], texts.users[long], seed) for values in each] if long.any() else []
    mean, most = mean_figure(found.longest, texts.users, seed), found.longest.max()
    of_runs = (mean, Figure(float(np.percentile(found.longest, 95))), Figure(float(most)))
    return {**dict(zip(_OF_GRAMS, of_grams, strict=False)), **dict(zip(_OF_RUNS, of_runs, strict=True))}


def distance_rows(
    features: Mapping[str, Features], synthetic: Texts, holdout: Texts | None, seed: int = 0
) -> list[FigureRow]:
    """Distances to the nearest real text: quantiles, their ratio to the held-out ones, and which side is nearer."""
    ours = {name: nearest_distances(each.synthetic, each.real) for name, each in features.items()}
    theirs = {
        name: nearest_distances(each.holdout, each.real) for name, each in features.items() if each.holdout is not None
    }
    rows = [row for quantile in (1, 5, 50) for row in _quantile_rows(quantile, ours, theirs)]
    mean = mean_figure(np.mean(list(ours.values()), axis=0), synthetic.users, seed)
    if holdout is None:
        return [*rows, FigureRow(_GROUP, "nearest_distance_mean", "near", mean)]
    control = mean_figure(np.mean(list(theirs.values()), axis=0), holdout.users, seed)
    nearer = _nearer_rows(features, synthetic, seed)
    return [*rows, FigureRow(_GROUP, "nearest_distance_mean", "near", mean, control), *nearer]


def _quantile_rows(quantile: int, ours: Mapping[str, _Distances], theirs: Mapping[str, _Distances]) -> list[FigureRow]:
    name = f"nearest_distance_p{quantile}"
    each = {key: {"synthetic": float(np.percentile(values, quantile))} for key, values in ours.items()}
    for key, values in theirs.items():
        each[key]["reference"] = float(np.percentile(values, quantile))
    mean = Figure(float(np.mean([values["synthetic"] for values in each.values()])))
    if not theirs:
        return [FigureRow(_GROUP, name, "near", mean, None, each)]
    other = float(np.mean([values["reference"] for values in each.values()]))
    rows = [FigureRow(_GROUP, name, "near", mean, Figure(other), each)]
    if other > 0:  # where held-out texts are themselves copies, a ratio says nothing
        rows.append(FigureRow(_GROUP, f"{name}_ratio", "near", Figure(mean.value / other), Figure(1.0)))
    return rows


def _nearer_rows(features: Mapping[str, Features], synthetic: Texts, seed: int) -> list[FigureRow]:
    """Against equally many real and held-out texts; a tie counts for both."""
    votes = []
    for each in features.values():
        assert each.holdout is not None
        size = min(len(each.real), len(each.holdout))
        real, held = (side[sample(len(side), size, seed)] for side in (each.real, each.holdout))
        gap = nearest_distances(each.synthetic, held) - nearest_distances(each.synthetic, real)
        votes.append((gap > 0) + 0.5 * (gap == 0))
    share = mean_figure(np.mean(votes, axis=0), synthetic.users, seed)
    return [FigureRow(_GROUP, "nearer_to_real", "near", share, Figure(0.5))]
