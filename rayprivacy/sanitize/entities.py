"""Typed values in a text: e-mail addresses, links, IP addresses, dates, card and phone numbers, codes.

They are found before words are, by public patterns, because a telephone number is one value and not three words, and
because no vocabulary has it. A detector says where they are; `surrogates` makes up others of the same format. What is
not found is treated as words: most values are then unknown to the vocabulary, and become any word.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rayprivacy.core.errors import ConfigError


@dataclass(frozen=True, order=True)
class Span:
    """One typed value of a text.

    Attributes:
        start, end: its characters.
        kind: one of `settings.KINDS`.
    """

    start: int
    end: int
    kind: str


class Detector(Protocol):
    """Finds typed values.

    Attributes:
        name: of the detector with its version, for the certificate.
    """

    name: str

    def find(self, text: str) -> list[Span]:
        """The values of a text, from left to right, none over another."""
        ...


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
PATTERNS = {
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "url": r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]']",
    "ip": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)",
    "date": rf"\b(?:\d{{4}}-\d{{1,2}}-\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}"
    rf"|{_MONTH} {_DAY}(?:,? \d{{4}})?|{_DAY} (?:of )?{_MONTH}(?:,? \d{{4}})?)(?!\w)",
    "card": r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])",
    "phone": r"(?<![\w-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{2,4}\) ?|\d{2,4}[ .-])\d{3,4}[ .-]?\d{3,4}(?![\w-])"
    r"|(?<!\w)\+\d{7,15}(?!\w)",
    "code": r"(?<![\w-])(?:\d{5,}|\d{3}-\d{2}-\d{4}|(?=[\w-]*\d[\w-]*\d)[a-z]{1,6}-?\d[a-z\d]*(?:-[a-z\d]+)*)(?![\w-])",
}
_HINT = re.compile(r"\d|@|www\.|://")


class PatternDetector:
    """The patterns of this package.

    Args:
        kinds: which are looked for; where two match at a place, the one named first in `PATTERNS`.
    """

    name = "patterns of rayprivacy, version 1"

    def __init__(self, kinds: Iterable[str]) -> None:
        wanted = set(kinds)
        either = "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in PATTERNS.items() if kind in wanted)
        self._pattern = re.compile(either, re.IGNORECASE) if either else None

    def find(self, text: str) -> list[Span]:
        """The values of a text."""
        if self._pattern is None or not _HINT.search(text):
            return []
        return [Span(*match.span(), str(match.lastgroup)) for match in self._pattern.finditer(text)]


class PresidioDetector:
    """The recognisers of Microsoft Presidio that are patterns and checks (extra `presidio`); no model is loaded.

    They are called one by one: Presidio's engine would download a language model.

    Args:
        kinds: which are looked for.

    Raises:
        ConfigError: Presidio is not installed.
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
    """A detector by its name in recipes.

    Raises:
        ConfigError: it is not installed.
    """
    return PresidioDetector(kinds) if name == "presidio" else PatternDetector(kinds)
