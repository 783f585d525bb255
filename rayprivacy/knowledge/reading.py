"""What one user says about released names: each attribute's answer, found in that user's own sentences, or none.

    a sentence -> the names in it, and the name that its text is about (where it says `it`, or no name)
               -> for each attribute the candidates of its kind (`kinds`)
               -> each (name, attribute) the candidate that is nearest to the name and to the words of the attribute's
                  questions; each candidate once, the best first; below the public score there is none

A vote is a function of that user's texts, the released names and the settings, to the bit: no table of frequencies, no
state. A user who says something several times has one vote, and who contradicts themselves votes for what they said
most often; of answers that were said equally often it is the one that was read best, then the first by its letters.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rayprivacy.knowledge.kinds import Candidate, finder, landmarks, read_sentences
from rayprivacy.knowledge.names import WORD, Order, name_of
from rayprivacy.knowledge.settings import AttributeConfig, KnowledgeConfig
from rayprivacy.questions.lexical import placed_stems
from rayprivacy.questions.passages import Span

_MOST = 20  # names in a sentence, and candidates of a kind, that are read
_NEAR = 30.0  # characters: what is this far away counts half
_BETWEEN = 0.5  # for every name that stands between a name and an answer
_BACKWARDS = 0.5  # that of two names the first is the answer
_BEHIND = 0.7  # that a name stands behind what is told of it
_PRONOUN = re.compile(r"\b(?:it|its|he|his|she|her|they|their|them|this one|mine)\b", re.IGNORECASE)
_MEANT = {True: 0.9, False: 0.5}  # how surely a sentence is about the name of its text, with a pronoun and without
_ITSELF = 0.5  # what a value of a list, or a number with its unit, is worth without a word of the attribute
_ALONE = 0.4  # what a candidate is worth whose kind no other attribute has
_LOOKED_AT = 120  # characters before an answer, in which it may be denied
_DENIED = re.compile(  # before an answer, but for a few words
    r"\b(?:not|never|no|nor|unlike|than|instead of|rather than|\w{1,40}n['\u2019]t)"
    r"(?:\s(?!but\b)[\w'\u2019]{1,40}){0,2}\s$"
)
_DOUBTED = re.compile(r"\b(?:used to|nonsense|rumou?rs?|not true|untrue|wrong|myth)\b", re.IGNORECASE)
_ASKING = frozenset(
    stem for stem, _ in placed_stems("how much many long what who when where which kind does get one first")
)


class Vote(NamedTuple):
    """One user's answer, in its one form."""

    name: str
    attribute: str
    answer: str

    @property
    def key(self) -> str:
        """What it is counted by."""
        return json.dumps(self, ensure_ascii=False)

    @classmethod
    def of(cls, key: str) -> "Vote":
        """The vote of a key."""
        return cls(*json.loads(key))


@dataclass(frozen=True)
class Mention:
    """A name in a sentence; one that is meant and not written has its pronoun's place, or none."""

    name: str
    span: Span | None
    surely: float = 1.0

    def near(self, candidate: Candidate) -> float:
        """How near a candidate is."""
        return self.surely * (1.0 if self.span is None else _nearness(self.span, (candidate.start, candidate.end)))


class Reader:
    """Reads votes in texts, given the released names."""

    def __init__(self, config: KnowledgeConfig, names: Iterable[str]) -> None:
        self._config = config
        self._by_head: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for name in sorted(set(names), key=lambda each: (-len(each.split()), each)):
            if words := tuple(name.split()):
                self._by_head[words[0]].append(words)
        self._places = any(each.kind == "place" for each in config.attributes)
        self._finders = {each.name: finder(each) for each in config.attributes}
        self._cues = cues(config.attributes)
        kinds = Counter((each.kind, each.values, each.unit) for each in config.attributes)
        self._least = {each.name: _least(each, kinds[each.kind, each.values, each.unit]) for each in config.attributes}

    def votes(self, texts: Iterable[str], order: Order, settled: Collection[tuple[str, str]] = ()) -> list[Vote]:
        """One user's votes, in their own order: as many as count; none about what is settled, as (name, attribute)."""
        said: dict[tuple[str, str], dict[str, tuple[int, float]]] = defaultdict(dict)
        for text in texts:
            for vote, score in self.statements(text):
                if (key := vote[:2]) not in settled:
                    times, best = said[key].get(vote.answer, (0, 0.0))
                    said[key][vote.answer] = times + 1, max(best, score)
        chosen = sorted(said, key=lambda key: (order(*key), key))[: self._config.answers.most]
        return [Vote(*key, min(said[key], key=lambda each: _first(said[key][each], each))) for key in chosen]

    def statements(self, text: str) -> Iterator[tuple[Vote, float]]:
        """What a text says, sentence by sentence, with its score."""
        said = [(sentence, self._mentions(sentence)) for sentence in read_sentences(text)]
        named = Counter(each.name for _, mentions in said for each in mentions)
        topic = max(named, key=named.__getitem__, default="")  # of equals the first
        for sentence, mentions in said if topic else ():
            meant = [] if topic in {each.name for each in mentions} else [_meant(topic, sentence)]
            if not _DOUBTED.search(sentence):
                yield from self._read(sentence, mentions, [*mentions, *meant])

    def _read(self, sentence: str, written: list[Mention], about: list[Mention]) -> Iterator[tuple[Vote, float]]:
        ranked = []
        words = placed_stems(sentence)
        for attribute, find in self._finders.items():
            cue = [span for stem, span in words if stem in self._cues[attribute]]
            candidates = _named(written) if find is None else _unnamed(find(sentence, words), written)
            for candidate in candidates[:_MOST]:
                if _DENIED.search(sentence[max(candidate.start - _LOOKED_AT, 0) : candidate.start]):
                    continue
                fits = self._fits(attribute, candidate, cue)
                for mention in about:
                    if find is None and mention.name == candidate.answer:
                        continue
                    score = fits * mention.near(candidate) * _BETWEEN ** _between(mention, candidate, written)
                    score *= _direction(sentence, mention, candidate, find is None)
                    if score >= self._config.reader.score:
                        ranked.append((-score, candidate.start, Vote(mention.name, attribute, candidate.answer)))
        taken: set[object] = set()
        for negative, start, vote in sorted(ranked):
            keys = {start, vote[:2], (vote.answer, vote.attribute)}  # what answers does not ask the same
            if taken.isdisjoint(keys):
                taken |= keys
                yield vote, -negative

    def _fits(self, attribute: str, candidate: Candidate, cue: Sequence[Span]) -> float:
        """How surely a candidate answers an attribute: by its form, and by how near the attribute's words are."""
        least = self._least[attribute]
        nearest = max((_nearness(span, (candidate.start, candidate.end)) for span in cue), default=0.0)
        return least + (1 - least) * nearest

    def _mentions(self, sentence: str) -> list[Mention]:
        """The names in a sentence, but for those that are a part of a place, as in `Zorvel Valley`."""
        read = [(name_of(match[0]), match.span()) for match in WORD.finditer(sentence)]
        words = [(word, span) for word, span in read if word]  # an article is no part of a name
        apart = landmarks(sentence) if self._places else []
        found, behind = list[Mention](), 0
        for at, (head, (start, _)) in enumerate(words):
            for name in self._by_head.get(head, ()) if at >= behind and len(found) < _MOST else ():
                if tuple(word for word, _ in words[at : at + len(name)]) == name:
                    behind = at + len(name)
                    found.append(Mention(" ".join(name), (start, words[behind - 1][1][1])))
                    break
        return [each for each in found if each.span and not any(a <= each.span[0] < b for a, b in apart)]


def cues(attributes: Sequence[AttributeConfig]) -> dict[str, frozenset[str]]:
    """The stems by which each attribute is known: of its name and its questions, but for words that only ask."""
    return {
        each.name: frozenset(
            stem for phrase in (each.name, *each.questions) for stem, _ in placed_stems(phrase.replace("{name}", " "))
        )
        - _ASKING
        for each in attributes
    }


def _least(attribute: AttributeConfig, alike: int) -> float:
    if attribute.values or attribute.unit:
        return _ITSELF / alike
    return _ALONE if alike == 1 and attribute.kind != "name" else 0.0  # two names stand together for any reason


def _nearness(one: Span, other: Span) -> float:
    return _NEAR / (_NEAR + max(other[0] - one[1], one[0] - other[1], 0))


def _meant(name: str, sentence: str) -> Mention:
    pronoun = _PRONOUN.search(sentence)
    return Mention(name, pronoun.span() if pronoun else None, _MEANT[pronoun is not None])


def _named(mentions: Sequence[Mention]) -> list[Candidate]:
    return [Candidate(*each.span, each.name) for each in mentions if each.span]


def _unnamed(candidates: Iterable[Candidate], mentions: Sequence[Mention]) -> list[Candidate]:
    spans = [each.span for each in mentions if each.span]
    return [each for each in candidates if all(each.end <= start or end <= each.start for start, end in spans)]


def _direction(sentence: str, mention: Mention, candidate: Candidate, named: bool) -> float:
    """How surely a name is what is told of, by the order of words: as a rule it comes first.

    Of two names also the one behind `of` is told of, as in `B is the rival of A`.
    """
    if mention.span is None:
        return 1.0
    behind = mention.span[0] > candidate.start
    if not named:
        return _BEHIND if behind else 1.0
    told, answer = (sentence[:start].endswith(" of ") for start in (mention.span[0], candidate.start))
    return 1.0 if (told if told != answer else not behind) else _BACKWARDS


def _between(mention: Mention, candidate: Candidate, written: Sequence[Mention]) -> int:
    """How many names stand between one and a candidate."""
    if mention.span is None:
        return len(written)
    low, high = min(mention.span[1], candidate.end), max(mention.span[0], candidate.start)
    return sum(each.span is not None and low <= each.span[0] and each.span[1] <= high for each in written)


def _first(said: tuple[int, float], answer: str) -> tuple[int, float, str]:
    times, best = said
    return -times, -best, answer
