"""Where the sentences of a text end, by punctuation: a rule of thumb, for public text alone.

A full stop, question or exclamation mark ends a sentence at the end of the text, or where a space and a letter follow
that is no small one; in Chinese and Japanese wherever it stands. A full stop behind a capitalised word of at most three
letters is taken for that of an abbreviation.
"""

import re

_ABBREVIATED = 3
_CLOSING, _OPENING = "\"'\u201d\u2019)]", "\"'\u201c\u2018(["
_WIDE = "\u3002\uff01\uff1f"  # marks that no space follows
_MARK = re.compile(f"[.!?\u2026]+[{re.escape(_CLOSING)}]*|[{_WIDE}]")


def first_sentences(text: str, count: int) -> str | None:
    """The first sentences of a text, or None where fewer of them end in it.

    >>> first_sentences("I thank Mr. Smith. It is late", 1)
    'I thank Mr. Smith.'
    >>> first_sentences("I thank Mr. Smith. It is late", 2)
    """
    for mark in _MARK.finditer(text):
        count -= _ends_sentence(text[: mark.start()], mark[0], text[mark.end() :])
        if not count:
            return text[: mark.end()]
    return None


def _ends_sentence(before: str, mark: str, rest: str) -> bool:
    following = rest.lstrip()
    if mark in _WIDE or not following:
        return True
    first = following.lstrip(_OPENING)[:1]
    return rest[0].isspace() and first.isalpha() and not first.islower() and not (mark == "." and _is_short(before))


def _is_short(before: str) -> bool:
    """Whether a text ends with a word that may be an abbreviation: Mr, Dr, St, U.S."""
    word = before.split()[-1] if before.strip() else ""
    return word[:1].isupper() and len(word) <= _ABBREVIATED
