"""Texts in and out: round trips on any Unicode, lengths, typed values, and a text's independence of its company."""

import calendar
import re
import socket
import unicodedata
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.sanitize.documents import ENTITY, Sanitizer, Words, put_together, split, tidy
from rayprivacy.sanitize.entities import PatternDetector, Span, Surrogates, detector_of, without_overlaps
from rayprivacy.sanitize.mechanism import SanText
from rayprivacy.sanitize.settings import KINDS
from rayprivacy.sanitize.table import Table
from rayprivacy.sanitize.vocabulary import load_glove

VALUES = {"email": "Mary.Smith+x@mail.example.co.uk", "url": "https://www.bank.com/account?id=77", "code": "AB-12345"}
VALUES |= {"date": "March 3, 2021", "card": "4111 1111 1111 1111", "phone": "+1 415-555-0134", "ip": "192.168.10.254"}


@cache
def _table(epsilon):
    return Table(load_glove(500, unit_length=True), epsilon)


def _sanitise(coins, texts, tags=None, epsilon=10.0, **more):
    """Sixteen words of each text at most, with documents numbered from 10 on."""
    surrogates = Surrogates(coins, Key.for_tests() if more.pop("consistent", False) else None, "release")
    words, mechanism = Words(_table(epsilon).vocabulary.words), SanText(_table(epsilon))
    sanitizer = Sanitizer(words, mechanism, PatternDetector(KINDS), surrogates, coins, 16, **more)
    return sanitizer.sanitise(texts, _tags(len(texts)) if tags is None else tags)


def _tags(count):
    return np.arange(10, 10 + count, dtype=np.uint64)


@given(st.text())
def test_a_text_is_put_together_again(text):
    tidied = tidy(text)
    words, gaps = split(tidied)
    assert put_together(words, gaps) == tidied
    assert all(gap.strip() == "" or not re.search(r"[^\W_]", gap) for gap in gaps)
    if not re.search("[\u2019\ue000\x00]", text):
        assert tidied == unicodedata.normalize("NFC", text)


@given(st.lists(st.text(), max_size=5))
def test_any_text_is_sanitised_and_none_is_longer_than_the_bound(texts):
    words = Words(("the", ",", "n't", "cat"))
    ids, lengths = words.ids([tidy(text) for text in texts], 3)
    assert len(lengths) == len(texts)
    assert (lengths <= 3).all()
    assert len(ids) == lengths.sum()
    assert [min(len(split(tidy(text))[0]), 3) for text in texts] == lengths.tolist()


def test_words_are_those_of_glove(glove):
    assert split("She didn\u2019t".replace("\u2019", "'"))[0] == ["She", "did", "n't"]
    assert split("it's we've CAN'T")[0] == ["it", "'s", "we", "'ve", "CA", "N'T"]
    assert split("rock'n'roll, no?")[0] == ["rock", "'", "n", "'", "roll", ",", "no", "?"]
    words = Words(glove.words)
    ids, _ = words.ids(["The cat, (of) was n't 'S unheardof"], 99)
    spelled = [glove.words[each] if each < 500 else "?" for each in ids.tolist()]
    assert spelled == ["the", "?", ",", "(", "of", ")", "was", "n't", "'s", "?"]
    known = ids[ids < 500]
    assert list(words.join(known, np.array([len(known)]))) == ["the, (of) wasn't's"]


def test_a_text_does_not_depend_on_its_company(glove, coins):
    texts = [f"the city of {word} , call +1 415-555-01{at:02d} now" for at, word in enumerate(glove.words[:30])]
    tags = _tags(30)
    together = _sanitise(coins, texts)
    assert [_sanitise(coins, [text], tags[at : at + 1])[0] for at, text in enumerate(texts)] == together
    assert _sanitise(coins, texts[::-1], tags[::-1]) == together[::-1]
    twins = _sanitise(coins, [texts[0]] * 50)
    assert len(set(twins)) > 40, "equal texts of different documents have coins of their own"


def test_texts_are_cut_to_the_public_bound(coins):
    found = _sanitise(coins, ["the " * 99, "", "  ", "a@b.com " * 20])
    assert [len(split(text)[0]) for text in found[:3]] == [16, 0, 0]
    assert found[3].count("@example.com") == 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_typed_value_is_found_and_made_up_anew_in_its_format(kind, coins):
    def format_of(text):
        return re.sub("[A-Z]", "X", re.sub(r"\d", "0", text))

    value = VALUES[kind]
    assert PatternDetector(KINDS).find(f"it is {value}, yes") == [Span(6, 6 + len(value), kind)]
    spelled = set(_sanitise(coins, [value] * 40))
    assert {span.kind for text in spelled for span in PatternDetector(KINDS).find(text)} == {kind}
    assert len(spelled) > 5, "drawn for each document"
    assert value not in spelled
    assert value not in _sanitise(coins, [f"it is {value}, yes"])[0]
    if kind in ("card", "phone", "ip", "code"):
        assert set(map(format_of, spelled)) == {format_of(value)}


@pytest.mark.parametrize("signs", ["\u0940\u094b", "\u0301\u0308", "\u2764\u2620", "\U000e0041\U000e0042"])
@pytest.mark.parametrize("kind", ["code", "phone"])
def test_what_is_no_letter_and_says_something_is_made_up_too(coins, kind, signs):
    first, second = (Surrogates(coins).make(kind, f"id12345\u0915{sign} \u20ac 7", 1, 2) for sign in signs)
    assert first == second
    assert first[7:-1] == "xx \u20ac "  # what separates is layout, and stays


@pytest.mark.parametrize("link", ["WWW.BANK.COM/MARY", "Www.bank.com/mary"])
def test_a_link_in_capitals_is_found_in_a_text_without_a_digit(link):
    assert PatternDetector(KINDS).find(f"it is {link} then") == [Span(6, 6 + len(link), "url")]


def test_digits_of_made_up_values_are_uniform(coins):
    surrogates = Surrogates(coins)
    digits = "".join(surrogates.make("card", "4111111111111111", tag, 0) for tag in range(1000))
    counts = np.bincount([int(digit) for digit in digits], minlength=10)
    assert len(digits) == 16_000
    assert abs(counts - 1600).max() < 5 * np.sqrt(1600)


def test_equal_values_stay_equal_only_where_that_is_asked_for(coins):
    texts = [f"call {VALUES['phone']}"] * 6 + ["call +1 415-555-9999"]
    plain, kept = ([text[-15:] for text in _sanitise(coins, texts, consistent=each)] for each in (False, True))
    assert len(set(plain)) == 7
    assert len(set(kept[:6])) == 1
    assert kept[6] != kept[0]


ORDINARY = ["in 2021 we were 3 of 40", "3.14", "the 1st", "covid", "a - b", "10 000", "5 o'clock", "mp3"]
ORDINARY += ["10\u00a0000", "$12.50", "$1,250.00", "1.50 2.50 3.75 4.20 5.10", "24/7", "10:30", "v1.2.10", "1/2 1/4"]
ORDINARY += ["1914-18", "2010\u20132015", "pages 12\u201315", "since\u20142015", "\u22125\u00a0to 5"]
ORDINARY += ["2019. 2020. 2021"]


@pytest.mark.parametrize("text", ORDINARY)
def test_plain_numbers_and_words_are_no_values(text):
    assert PatternDetector(KINDS).find(text) == []


def test_no_more_is_hidden_than_the_kinds_that_are_asked_for():
    assert PatternDetector(["phone"]).find("x_12345678 a@b.com 5-12-2015") == []
    assert PatternDetector(["date"]).find("x_12345678 a@b.com 5-12-2015") == [Span(19, 28, "date")]


SPELLED = {
    "date": ["5-12-2015", "5\u201112\u20112015", "2015/05/12", "2015-05-12T10:00", "2015-05-12T10:00:05.25+02:00"],
    "card": ["4111  1111 1111 1111", "4111.1111.1111.1111", "3782\u2013822463\u201310005"],
    "phone": ["555\u2011123\u20114567", "555\u00a0123\u00a04567", "555 \u2014 123 \u2014 4567", "12 555 123 4567"],
    "code": ["123\u201345\u20136789", "123\u00ad45\u200b6789", "5551234567-", "x_12345678", "ACCOUNT12345678"],
}
SPELLED["phone"] += ["1-800-555-1234"]
SPELLED["code"] += ["x555 123 4567", "a123 45 6789", "dec 5-12-2015", "\u0661\u0662\u0663\u0664\u0665x"]


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in SPELLED.items() for value in values])
def test_a_value_is_found_whole_in_many_spellings(value, kind, coins):
    text = f"caf\u00e9 {value} yes"
    assert PatternDetector(KINDS).find(text) == [Span(5, 5 + len(value), kind)]
    made = Surrogates(coins).make(kind, value, 7, 1)
    assert [letter.isalnum() for letter in made] == [letter.isalnum() for letter in value]
    assert made != value


@pytest.mark.parametrize(
    "value",
    ["Sepsecret 3", "\u017fepsecret 3", "3 of \u017fepSecret, 1999", "3\u017ft of mayor", "AUGSECRET\u0131 3rd"],
)
def test_of_the_words_of_a_date_nothing_is_left(value, coins):
    """To a pattern without case the long s is an s, and lower() leaves it as it is."""
    assert PatternDetector(KINDS).find(value) == [Span(0, len(value), "date")]
    drawn = " ".join(Surrogates(coins).make("date", value, tag, 1) for tag in range(40))
    made = {*re.findall(r"[^\W\d]+", drawn)}
    assert {word.lower()[:3] for word in made} <= {*map(str.lower, calendar.month_abbr), "rd", "of"}
    assert "secret" not in drawn.lower()
    assert len(made) > 10


DIGITS = "0123456789012345678901234567890aZ_ -.\u2011\u00a0\u2014\u200b()+#/@,:\n\u0664"


@given(st.text(st.sampled_from(DIGITS), max_size=60))
def test_no_five_digits_in_a_row_are_left(text):
    spans, end, rest = PatternDetector(KINDS).find(text), 0, ""
    for span in spans:
        assert end <= span.start < span.end <= len(text)
        rest, end = rest + text[end : span.start] + "\n", span.end
    assert not re.search(r"\d{5}", rest + text[end:])


def test_long_runs_are_read_in_a_moment():
    for text in ("a" * 10**5 + "1", "1" * 10**5, "a1-" * 40_000, "1.1." * 30_000, "100 200 " * 20_000):
        PatternDetector(KINDS).find(text)  # in hours, if each of its characters were a start


def test_of_overlapping_values_one_is_kept():
    found = without_overlaps([Span(5, 9, "ip"), Span(0, 6, "url"), Span(0, 4, "code"), Span(9, 12, "date")])
    assert found == [Span(0, 6, "url"), Span(9, 12, "date")]


@pytest.mark.parametrize(
    ("text", "kept", "released"),
    [
        ("the government, it said, was not in the city.", {}, "the government, it said, was not in the city."),
        ("The  CITY\n\nwas  In", {}, "the city was in"),
        ("The  CITY\n\nwas  In", {"keep_layout": True}, "the  city\n\nwas  in"),
    ],
)
def test_at_a_large_epsilon_words_stay(coins, text, kept, released):
    assert _sanitise(coins, [text], epsilon=90.0, **kept) == [released]
    assert _sanitise(coins, [text], epsilon=1.0, **kept) != [released]


def test_a_text_cannot_bring_its_own_mark(coins):
    (found,) = _sanitise(coins, [f"the {ENTITY} city a@b.com \x00"])
    assert ENTITY not in found
    assert found.count("@example.com") == 1


def test_presidio_is_asked_for_in_a_sentence_or_finds_the_same(monkeypatch):
    def refused(*_):
        raise AssertionError("something was asked for over a network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    if find_spec("presidio_analyzer") is None:
        with pytest.raises(ConfigError, match=r"pip install 'rayprivacy\[presidio\]'"):
            detector_of("presidio", KINDS)
    else:
        found = detector_of("presidio", KINDS).find(f"write to {VALUES['email']} or pay with {VALUES['card']}")
        assert {span.kind for span in found} >= {"email", "card"}
