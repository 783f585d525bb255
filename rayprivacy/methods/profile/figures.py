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
from rayprivacy.release.histogram import Totals
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

    >>> _quantile(np.array([600.0, 300.0, 80.0, 20.0]), (1, 2, 3), 10.0)
    {'value': 3, 'interval': [3, 3], 'event': 'counts of users'}
    >>> _quantile(np.array([600.0, 300.0, 80.0, 20.0]), (1, 2, 3), 40.0)["interval"]
    [2, None]
    """
    upto, last = np.arange(1, len(counts) + 1), len(counts) - 1
    surplus = np.cumsum(counts) - QUANTILE * counts.sum()
    noise = _Z * std * np.sqrt((1 - QUANTILE) ** 2 * upto + QUANTILE**2 * (len(counts) - upto))
    value, low = (min(np.flatnonzero(each >= 0).tolist(), default=last) for each in (surplus, surplus + noise))
    high = min(1 + max(np.flatnonzero(surplus - noise < 0).tolist(), default=-1), last)
    return _figure(ends[min(value, last - 1)], ends[min(low, last - 1)], (*ends, None)[high], COUNTS)


def _keys(found: ReleasedCounts) -> Iterator[tuple[str, Json]]:
    """Words and labels with their numbers of users, the most frequent first."""
    low, high = found.interval(CONFIDENCE)
    for at in np.argsort(-found.counts, kind="stable"):
        yield found.keys[at], _figure(round(found.counts[at]), math.floor(low[at]), math.ceil(high[at]), KEYWORDS)


def tables(profile: Mapping[str, Any]) -> list[Table]:
    """The profile as tables; all of it was released."""
    suggested = profile["suggested"]
    said = {
        "users": ("", suggested["users"]),
        "corpus.max_records_per_user": ("texts of 95% of the users", suggested["max_records_per_user"]),
        "max_tokens": ("tokens of a text, 95% by user", suggested["max_tokens"]),
    }
    advice = [(name, what, *_cells(figure)) for name, (what, figure) in said.items()]
    shown = [Table("What a recipe may say", ("key", "which is", "suggested", "95%"), advice, internal=False)]
    for title, name in (("Texts of a user", "records_per_user"), ("Tokens of a text, by user", "tokens_per_text")):
        spans = [(_span(each), *_cells(each["users"])) for each in profile[name]]
        shown.append(Table(title, (title.partition(" ")[0].lower(), "users", "95%"), spans, internal=False))
    for title, name, columns in (
        ("Scripts, by user", "scripts", ("script",)),
        ("Labels", "labels", ("label", "value")),
        (f"Words, of most users first, at most {_SHOWN}", "words", ("word",)),
    ):
        rows = [(*(each[column] for column in columns), *_cells(each["users"])) for each in profile[name][:_SHOWN]]
        shown.append(Table(title, (*columns, "users", "95%"), rows, internal=False))
    return [table for table in shown if table.rows]


def _span(cell: Json) -> str:
    return f"{cell['from']} or more" if cell["to"] is None else f"{cell['from']} to {cell['to']}"


def _cells(figure: Json) -> tuple[str, str]:
    low, high = figure["interval"]
    return f"{figure['value']:,}", f"{low:,} to {high:,}" if high is not None else f"{low:,} or more"
