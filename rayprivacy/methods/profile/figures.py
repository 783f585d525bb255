"""The content of a profile: noisy numbers with their intervals, and what follows from them. All of it was released.

Each interval holds for its number with 95%, and not for all of them at once. A suggestion is a quantile over users. Its
interval is one of cells: with T(k) the number of users up to cell k less their share of all, which falls nowhere but by
noise, it begins at the first cell in which T may be positive, and ends behind the last one in which it may be negative.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from rayprivacy.core.files import Json
from rayprivacy.methods.profile import cells
from rayprivacy.methods.profile.counting import label_of
from rayprivacy.methods.profile.plan import COUNTS, KEYWORDS
from rayprivacy.release.histogram import Totals, nearest_shares
from rayprivacy.release.thresholded import ReleasedCounts
from rayprivacy.runs.method import Table

CONFIDENCE, QUANTILE = 0.95, 0.95
_Z = -float(ndtri((1 - CONFIDENCE) / 2))
_SHOWN = 100  # words of a page
LEFT_OUT = (
    "Languages: a script says less, and needs no model.",
    "Topics: the packaged encoder would take many minutes for a hundred thousand texts.",
    "Words and labels under the threshold, and how many of them there are.",
)


def figures_of(counts: npt.NDArray[np.float64], totals: Totals, found: ReleasedCounts | None) -> Json:
    """Users, records, tokens, scripts, words and labels, and what a recipe may take from them."""
    (users,), records, tokens, scripts = totals.split(counts)
    keys = list(_keys(found)) if found else []
    return {
        "users": _noisy(users, totals.std),
        "records_per_user": _open_cells(records, cells.RECORDS, totals.std),
        "tokens_per_text": _open_cells(tokens, cells.TOKENS, totals.std),
        "scripts": [
            {"script": name, "users": _noisy(count, totals.std)}
            for name, count in zip(cells.SCRIPTS, scripts, strict=True)
        ],
        "words": [{"word": key, "users": figure} for key, figure in keys if label_of(key) is None],
        "labels": [
            {"label": label[0], "value": label[1], "users": figure} for key, figure in keys if (label := label_of(key))
        ],
        "suggested": {
            "users": _noisy(users, totals.std),
            "max_records_per_user": _quantile(records, cells.RECORDS, totals.std),
            "max_tokens": _quantile(tokens, cells.TOKENS, totals.std),
        },
    }


def _noisy(count: float, std: float) -> Json:
    """A noisy count; none is negative, and the ends are rounded outwards."""
    low, high = count - _Z * std, count + _Z * std
    return _figure(round(max(count, 0)), max(math.floor(low), 0), max(math.ceil(high), 0), COUNTS)


def _figure(value: int, low: int, high: int | None, event: str) -> Json:
    return {"value": value, "interval": [low, high], "event": event}


def _open_cells(counts: npt.NDArray[np.float64], ends: Sequence[int], std: float) -> list[Json]:
    """Users by cell; the last one has no end."""
    first = (1, *(end + 1 for end in ends))
    return [
        {"from": least, "to": most, "users": _noisy(count, std)}
        for least, most, count in zip(first, (*ends, None), counts, strict=True)
    ]


def _quantile(counts: npt.NDArray[np.float64], ends: Sequence[int], std: float) -> Json:
    """The end of the cell up to which 95% of the users lie; where that is the last, open one, the end before it.

    It is that of the shares which are nearest to the noisy counts: a cell that is empty, as most are, adds no noise.

    >>> _quantile(np.array([600.0, 300.0, 80.0, 20.0]), (1, 2, 3), 10.0)
    {'value': 3, 'interval': [3, 3], 'event': 'counts of users'}
    >>> _quantile(np.array([600.0, 300.0, 80.0, 20.0]), (1, 2, 3), 40.0)["interval"]
    [2, None]
    """
    upto, last = np.arange(1, len(counts) + 1), len(counts) - 1
    surplus = np.cumsum(counts) - QUANTILE * counts.sum()
    noise = _Z * std * np.sqrt((1 - QUANTILE) ** 2 * upto + QUANTILE**2 * (len(counts) - upto))
    low = min(np.flatnonzero(surplus + noise >= 0).tolist(), default=last)
    high = min(1 + max(np.flatnonzero(surplus - noise < 0).tolist(), default=-1), last)
    nearest = int(np.searchsorted(np.cumsum(nearest_shares(counts)), QUANTILE))
    value = min(max(nearest, low), high)
    return _figure(ends[min(value, last - 1)], ends[min(low, last - 1)], (*ends, None)[high], COUNTS)


def _keys(found: ReleasedCounts) -> Iterator[tuple[str, Json]]:
    """Words and labels with their numbers of users, the most frequent first."""
    low, high = found.interval(CONFIDENCE)
    for at in np.argsort(-found.counts, kind="stable"):
        yield found.keys[at], _figure(round(found.counts[at]), math.floor(low[at]), math.ceil(high[at]), KEYWORDS)


def tables(profile: Mapping[str, Any]) -> list[Table]:
    """The profile as tables, all of it released: scripts that surely are there, and the first hundred words."""
    suggested, counted = profile["suggested"], ("users", "95%")
    scripts = [each for each in profile["scripts"] if each["users"]["interval"][0] > 0]
    advice = [
        ("users", "", *_cells(suggested["users"])),
        ("corpus.max_records_per_user", "texts of 95% of the users", *_cells(suggested["max_records_per_user"])),
        ("max_tokens", "tokens of a text, 95% by user", *_cells(suggested["max_tokens"])),
    ]
    words = _rows(profile["words"][:_SHOWN], "word")
    shown = [
        Table("What a recipe may say", ("key", "which is", "suggested", "95%"), advice, internal=False),
        Table("Texts of a user", ("texts", *counted), _rows(profile["records_per_user"]), internal=False),
        Table("Tokens of a text, by user", ("tokens", *counted), _rows(profile["tokens_per_text"]), internal=False),
        Table("Scripts of texts, by user", ("script", *counted), _rows(scripts, "script"), internal=False),
        Table(
            "Values of labels", ("label", "value", *counted), _rows(profile["labels"], "label", "value"), internal=False
        ),
        Table("Words that many users write", ("word", *counted), words, internal=False),
    ]
    return [table for table in shown if table.rows]


def _rows(counted: Sequence[Json], *columns: str) -> list[tuple[str, ...]]:
    """A row for each number of users: what it is of, by some columns or by the ends of its cell, and its cells."""
    return [(*([each[column] for column in columns] or [_span(each)]), *_cells(each["users"])) for each in counted]


def _span(cell: Json) -> str:
    least, most = cell["from"], cell["to"]
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def _cells(figure: Json) -> tuple[str, str]:
    low, high = figure["interval"]
    return f"{figure['value']:,}", f"{low:,} or more" if high is None else f"{low:,} to {high:,}"
