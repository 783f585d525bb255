"""Candidates: what in a sentence could answer an attribute, by its kind, in the one form in which answers are counted.

Normalisation is public and comes before counting: `12kg`, `twelve kilos` and `12.0 kilograms` are one answer.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rayprivacy.knowledge.settings import AttributeConfig
from rayprivacy.questions.answers import normalised
from rayprivacy.questions.entities import by_rules
from rayprivacy.questions.lexical import placed_stems
from rayprivacy.questions.passages import Span, sentences

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_WORDS = {word: number for number, word in enumerate(f"{_SMALL} seventeen eighteen nineteen".split())}
_WORDS |= {word: 10 * number for number, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty"], 2)}
# Words in ASCII alone: to a pattern without case the long s is an s, and lower() leaves it as it is.
_SPELT = f"(?a:{'|'.join(_WORDS)})"
_NUMBER = rf"(?<![\w.,])(?P<number>[0-9]{{1,12}}(?:,[0-9]{{3}}){{0,4}}(?:\.[0-9]{{1,6}})?|{_SPELT})"
_MONTH = f"(?a:{'|'.join(f'{month[:3]}(?:{month[3:]})?' if month[3:] else month for month in _MONTHS)})"
_YEAR = r"(?P<year>1[0-9]{3}|20[0-9]{2})\b"
_DATES = [  # the first that fits a place has it
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_YEAR}-(?P<number>[0-9]{{2}})-(?P<day>[0-9]{{2}})\b",
        rf"\b(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:\sof)?\s(?P<month>{_MONTH})\b\.?,?\s{_YEAR}",
        rf"\b(?P<month>{_MONTH})\b\.?\s(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?,?\s{_YEAR}",
        rf"\b(?P<month>{_MONTH})\b\.?,?\s(?:of\s)?{_YEAR}",
        rf"\b{_YEAR}(?!-[0-9])",
    )
]
_CAPITALS = r"[A-Z][\w'\u2019-]{1,30}(?:\s[A-Z][\w'\u2019-]{1,30}){0,3}"
_BEHIND = re.compile(rf"\b(?:[Ii]n|[Aa]t|[Nn]ear|[Ff]rom|[Tt]o|[Aa]round)\s(?:[Tt]he\s)?({_CAPITALS})")
_A_MONTH = re.compile(rf"(?:{_MONTH})\b", re.IGNORECASE)
_LONGEST = 1000  # characters of a sentence
_LANDS = ("LOC", "FAC", "GPE")


@dataclass(frozen=True)
class Candidate:
    """A place in a sentence, and the answer that stands there in its one form."""

    start: int
    end: int
    answer: str


Stems = Sequence[tuple[str, Span]]  # of a sentence, with the places of their words
Finder = Callable[[str, Stems], list[Candidate]]


def finder(attribute: AttributeConfig) -> Finder | None:
    """What finds the candidates of an attribute in a sentence; None for names, which the reader knows itself."""
    match attribute.kind:
        case "category":
            return _values(attribute.values)
        case "number":
            return _numbers(attribute.unit, attribute.between)
        case "date":
            return lambda sentence, _: list(_dates(sentence))
        case "place":
            return _values(attribute.values) if attribute.values else lambda sentence, _: places(sentence)
    return None


def shown(answer: str, attribute: AttributeConfig) -> str:
    """An answer as it is written in passages."""
    match attribute.kind:
        case "number":
            return " ".join((answer, *attribute.unit[:1]))
        case "date":
            year, *rest = answer.split("-")
            month = [_MONTHS[int(each) - 1] for each in rest[:1]]
            return " ".join([*(str(int(day)) for day in rest[1:]), *month, year])
        case "place" | "name":
            return titled(answer)
    return answer


def titled(name: str) -> str:
    """A normalised name as names are written: how its users wrote it is not released."""
    return " ".join(word[:1].upper() + word[1:] for word in name.split())


def _values(values: Sequence[str]) -> Finder:
    """Values by the stems of their words, the longest first: a plural, or another case, is the same value."""
    known: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for value in sorted(values, key=lambda each: -len(each)):
        stems = tuple(stem for stem, _ in placed_stems(value))
        known.setdefault(stems[0] if stems else "", []).append((stems, normalised(value)))

    def find(sentence: str, words: Stems) -> list[Candidate]:
        found, end = list[Candidate](), 0
        for at, (stem, (start, _)) in enumerate(words):
            for stems, value in known.get(stem, ()) if start >= end else ():
                if tuple(each for each, _ in words[at : at + len(stems)]) == stems:
                    end = words[at + len(stems) - 1][1][1]
                    found.append(Candidate(start, end, value))
                    break
        return found

    return find


def _numbers(unit: Sequence[str], between: tuple[int, int] | None) -> Finder:
    low, high = between or (0, math.inf)
    spelt = "|".join(re.escape(each) for each in sorted(unit, key=len, reverse=True))
    pattern = re.compile(rf"{_NUMBER}\s?-?(?:{spelt})\b" if unit else rf"{_NUMBER}(?![\w%]|[.,]\d)", re.IGNORECASE)

    def find(sentence: str, words: Stems) -> list[Candidate]:
        found = [Candidate(*match.span(), _plain(match["number"])) for match in pattern.finditer(sentence)]
        return [each for each in found if low <= float(each.answer) <= high]

    return find


def _plain(number: str) -> str:
    """A number in digits, without zeros that say nothing.

    >>> _plain("Twelve"), _plain("1,200"), _plain("07.50")
    ('12', '1200', '7.5')
    """
    if (word := number.lower()) in _WORDS:
        return str(_WORDS[word])
    whole, _, rest = number.replace(",", "").partition(".")
    return ".".join(each for each in (str(int(whole)), rest.rstrip("0")) if each)


def _dates(sentence: str) -> Iterator[Candidate]:
    taken: list[Span] = []
    for pattern in _DATES:
        for match in pattern.finditer(sentence):
            start, end = match.span()
            answer = _iso(match.groupdict())
            if answer and all(end <= other[0] or other[1] <= start for other in taken):
                taken.append((start, end))
                yield Candidate(start, end, answer)


def _iso(found: dict[str, str | None]) -> str | None:
    """A date from its parts, as far as they go; None where there is no such month or day, or no month to a day."""
    named = found.get("month")
    month = next((at for at, each in enumerate(_MONTHS, 1) if named and each.lower().startswith(named[:3].lower())), 0)
    numbers = [month or int(found.get("number") or 0), int(found.get("day") or 0)]
    if numbers[0] > 12 or numbers[1] > 31 or (numbers[1] and not numbers[0]):
        return None
    return "-".join([found["year"] or "", *(f"{each:02}" for each in numbers if each)])


def places(sentence: str) -> list[Candidate]:
    """What is written like a place: capitals behind `in` or `from`, or beside a word such as `Valley`."""
    spans = [match.span(1) for match in _BEHIND.finditer(sentence)]
    spans += [span for span in landmarks(sentence) if all(span[1] <= start or end <= span[0] for start, end in spans)]
    found = [Candidate(start, end, normalised(sentence[start:end])) for start, end in sorted(spans)]
    return [each for each in found if each.answer and not _A_MONTH.match(each.answer)]


def landmarks(sentence: str) -> list[Span]:
    """Where places stand that a word such as `Valley` gives away, whatever is before them."""
    return [(each.start, each.end) for each in by_rules(sentence, _LANDS)]


def read_sentences(text: str) -> list[str]:
    """The sentences of a text, each as far as it is read."""
    return [text[start : min(end, start + _LONGEST)] for start, end in sentences(text)]
