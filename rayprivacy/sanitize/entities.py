"""Typed values in a text: e-mail addresses, links, IP addresses, dates, card and phone numbers, codes.

They are found before words are, by public patterns, because a telephone number is one value and not three words, and
because no vocabulary has it. A detector says where they are, and `Surrogates` makes up others of the same format. What
is not found is treated as words: most values are then unknown to the vocabulary, and become any word.

People spell a number in many ways: with dashes and blanks of Unicode, two blanks, letters or an underscore at its ends.
The patterns read a copy of the text in which every such dash is '-' and every such blank ' ', one for one, so that
places are those of the text. A run without white space that they leave five digits in a row in is a code.

Made-up values tell which kind of value stood there, and its layout (how many digits, which separators, capitals), and
no more: every digit becomes a uniform digit and every letter of a code a uniform letter. Addresses and links are made
of public words at a domain that is kept for examples (RFC 2606), whatever theirs were; of a date the name of the month
is drawn too. Digits are drawn as they come: a card number is not made to pass a check, and a date may not exist.

With `consistent`, the numbers are keyed by kind and value in place of document and position. Then equal values have
equal surrogates in the whole release, and the reader sees that they are equal, and nothing else of them.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key, words_of
from rayprivacy.sanitize.mechanism import ENTITY, Coins


@dataclass(frozen=True, order=True)
class Span:
    """One typed value of a text, between two of its characters."""

    start: int
    end: int
    kind: str  # one of `settings.KINDS`


class Detector(Protocol):
    """Finds typed values."""

    name: str  # with its version, for the certificate

    def find(self, text: str) -> list[Span]:
        """The values of a text, from left to right, none over another."""
        ...


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_TIME = r"(?:t\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:z|[+-]\d{2}:?\d{2})?)?"  # behind a date, as in 2015-05-12T10:00Z
_GAP = r"(?:\.| ?-{1,2} ?| {1,3})"  # between the groups of a number: one mark, or a few of them
# A run of characters is tried from its start alone, where that is all that can match: a long one would take hours.
PATTERNS = (
    ("email", r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ("url", r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]']"),
    ("ip", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)"),
    ("date", rf"(?<!\d)(?:\d{{4}}[/-]\d{{1,2}}[/-]\d{{1,2}}{_TIME}|\d{{1,2}}[/-]\d{{1,2}}[/-]\d{{2,4}})(?!\d)"),
    ("date", r"(?<![a-z\d])(?:\d{4}\.\d{1,2}\.\d{1,2}|\d{1,2}\.\d{1,2}\.\d{2,4})(?!\d)"),
    ("date", rf"\b(?:{_MONTH} {_DAY}(?:,? \d{{4}})?|{_DAY} (?:of )?{_MONTH}(?:,? \d{{4}})?)(?!\w)"),
    ("card", r"(?<!\d)(?:\d(?:[ -]{0,3}\d){12,18}|\d{4}(?:\.\d{4}){3}|\d{4}\.\d{6}\.\d{5})(?!\d)"),
    (
        "phone",
        rf"(?<!\d)(?:\+\d{{1,3}}{_GAP}?|1{_GAP})?(?:\(\d{{2,4}}\){_GAP}?|\d{{2,4}}{_GAP})"
        rf"\d{{3,4}}{_GAP}?\d{{3,4}}(?:{_GAP}\d{{3,4}})*(?!\d)",
    ),
    ("phone", r"\+\d{7,15}(?!\d)"),
    ("code", rf"(?<!\d)\d{{3}}{_GAP}\d{{2}}{_GAP}\d{{4}}(?!\d)"),
    ("code", r"(?<![\w-])(?:\d{5,}|(?=[\w-]*\d[\w-]*\d)[a-z]{1,6}-?\d[a-z\d]*(?:-[a-z\d]+)*)(?![\w-])"),
)
_HINT = re.compile(r"\d|@|www\.|://", re.IGNORECASE)
_DIGITS, _RUN = re.compile(r"\d{5}"), re.compile(r"\S+")
_DASHES = (*range(0x2010, 0x2014), 0x2212, 0xFE63, 0xFF0D)
_UNSEEN = (0xAD, *range(0x200B, 0x200E), 0x2060, 0xFEFF)  # soft hyphens and what has no width stand between digits too
_BLANKS = (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_PLAIN = dict.fromkeys((*_DASHES, *_UNSEEN), "-") | dict.fromkeys(_BLANKS, " ")
_LONG_DASH = re.compile(r"(?<=\d)[\u2014\u2015\ufe58](?=\d)|(?<=\d )[\u2014\u2015\ufe58](?= \d)")


class PatternDetector:
    """The patterns of this package; where two match the same characters, the one named first in `PATTERNS`."""

    name = "patterns of rayprivacy, version 3"

    def __init__(self, kinds: Iterable[str]) -> None:
        wanted = set(kinds)
        self._patterns = [(kind, re.compile(each, re.IGNORECASE)) for kind, each in PATTERNS if kind in wanted]
        self._takes_rest = "code" in wanted  # a code is whatever is left of five digits in a row

    def find(self, text: str) -> list[Span]:
        """The values of a text."""
        if not (self._patterns and _HINT.search(text)):
            return []
        plain = _plain(text)
        spans = _united([Span(*each.span(), kind) for kind, one in self._patterns for each in one.finditer(plain)])
        return sorted([*spans, *_left_over(plain, spans)]) if self._takes_rest else spans


def _plain(text: str) -> str:
    """The text with dashes in numbers (long ones between digits alone) as "-", and every blank as " ", one for one."""
    return text if text.isascii() else _LONG_DASH.sub("-", text.translate(_PLAIN))


def _united(found: Sequence[Span]) -> list[Span]:
    """Overlapping spans as one, so that nothing of them is left: of the kind of one that is all of it, or a code."""
    kept: list[Span] = []
    for span in sorted(found, key=lambda span: (span.start, -span.end)):  # stable: the kind named first stays first
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
        elif span.end > kept[-1].end:
            kept[-1] = Span(kept[-1].start, span.end, "code")
    return kept


def _left_over(text: str, spans: Sequence[Span]) -> list[Span]:
    """Runs of a text, besides some spans, that have five digits in a row and no white space."""
    edges = [0, *(edge for span in spans for edge in (span.start, span.end)), len(text)]
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if _DIGITS.search(text, start, end):
            runs = (run for run in _RUN.finditer(text, start, end) if _DIGITS.search(run[0]))
            found += [Span(*run.span(), "code") for run in runs]
    return found


class PresidioDetector:
    """The recognisers of Microsoft Presidio that are patterns and checks (extra `presidio`); no model is loaded.

    They are called one by one: Presidio's engine would download a language model.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        try:
            from importlib.metadata import version

            import tldextract
            from presidio_analyzer import predefined_recognizers as known
        except ImportError:
            raise ConfigError(
                "sanitize.detector is 'presidio', which is not installed: run pip install 'rayprivacy[presidio]'."
            ) from None
        # It would fetch a newer list of domains when it sees the first address; it has one with it.
        tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        classes = {
            "email": [known.EmailRecognizer],
            "url": [known.UrlRecognizer],
            "ip": [known.IpRecognizer],
            "date": [known.DateRecognizer],
            "card": [known.CreditCardRecognizer],
            "phone": [known.PhoneRecognizer],
            "code": [known.UsSsnRecognizer, known.IbanRecognizer, known.UsBankRecognizer],
        }
        self.name = f"Presidio {version('presidio-analyzer')}, patterns only"
        self._recognisers = [(kind, make()) for kind in kinds for make in classes[kind]]

    def find(self, text: str) -> list[Span]:
        """The values of a text."""
        found = []
        for kind, recogniser in self._recognisers:
            results = recogniser.analyze(text, recogniser.supported_entities, None)
            found += [Span(result.start, result.end, kind) for result in results]
        return without_overlaps(found)


def without_overlaps(spans: Sequence[Span]) -> list[Span]:
    """From left to right; of spans that overlap the one that begins first, then the longest."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def detector_of(name: str, kinds: Sequence[str]) -> Detector:
    """A detector by its name in recipes; ConfigError where it is not installed."""
    return PresidioDetector(kinds) if name == "presidio" else PatternDetector(kinds)


NAMES = "alex blake casey dana ellis finley gray harper jamie kai logan morgan noel".split()  # noqa: SIM905
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()  # noqa: SIM905
_LONG = "january february march april may june july august september october november december".split()  # noqa: SIM905
_BESIDE = ("st", "nd", "rd", "th", "of", "t", "z")  # words of a date that name no month; all others are taken for one
_LETTER = re.compile(r"[a-z]+", re.IGNORECASE)  # to which the long s is a letter too


class Surrogates:
    """Made-up values of one release; with the run's secret, equal values stay equal, without it each is drawn anew."""

    def __init__(self, coins: Coins, key: Key | None = None, *release: str) -> None:
        self._coins, self._key, self._release = coins, key, release

    def make(self, kind: str, value: str, tag: int, position: int) -> str:
        """A value of the same kind (see `settings.KINDS`) and layout as a private one at a word of a document."""
        numbers = self._of_value(self._key, kind, value) if self._key else self._of_place(tag, position)
        if kind in ("email", "url"):
            return _address(kind, numbers)
        return "".join(_part(part, kind, numbers) for part in re.split(r"([^\W\d_]+|\d)", value))

    def _of_place(self, tag: int, position: int) -> Iterator[int]:
        tags, positions = np.array([tag], dtype=np.uint64), np.array([position], dtype=np.uint32)
        for attempt in count():
            yield from map(int, self._coins.words(ENTITY, tags, positions, attempt)[0])

    def _of_value(self, key: Key, kind: str, value: str) -> Iterator[int]:
        secret = bytes.fromhex(key.digest("sanitize-entity", *self._release, kind, value))
        for block in count():
            yield from map(int, words_of(secret, block.to_bytes(16, "big"))[0])


def _part(part: str, kind: str, numbers: Iterator[int]) -> str:
    if part.isdigit() and len(part) == 1:
        return str(next(numbers) % 10)  # uniform up to 2^-60
    if not _LETTER.fullmatch(part):
        return part if part.isascii() else "".join(letter if _separates(letter) else "x" for letter in part)
    if kind == "date":
        return _like(_month(part, numbers), part)
    return "".join(_like(chr(ord("a") + next(numbers) % 26), letter) for letter in part)


def _separates(letter: str) -> bool:
    """Whether a character is layout: a mark of ASCII, a blank, dash or mark of punctuation, or a sign of a currency.

    A vowel sign of Hindi is a combining mark and no letter, and says as much of a word as the letter in front of it.
    """
    if letter.isascii():
        return not letter.isalnum()
    return ord(letter) in _PLAIN or unicodedata.category(letter)[0] in "PZ" or unicodedata.category(letter) == "Sc"


def _month(part: str, numbers: Iterator[int]) -> str:
    word = part.lower()
    if word in _BESIDE:
        return word
    return (_MONTHS if len(word) <= 4 and word != "may" else _LONG)[next(numbers) % 12]


def _like(made: str, part: str) -> str:
    return made.upper() if part.isupper() else made.capitalize() if part[0].isupper() else made


def _address(kind: str, numbers: Iterator[int]) -> str:
    name = NAMES[next(numbers) % len(NAMES)]
    return f"{name}@example.com" if kind == "email" else f"https://www.example.com/{name}"
