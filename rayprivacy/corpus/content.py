"""The content words of a text: what a profile counts, and users may vote for."""

import re
from collections.abc import Iterator
from importlib.resources import files

_WORD = re.compile(r"\b\w{3,40}\b(?:'\w{1,3}\b)?")
STOP_WORDS = frozenset(files("rayprivacy.corpus").joinpath("stop_words.txt").read_text("utf-8").split())


def content_words(text: str) -> Iterator[str]:
    """The words of a text in lower case, without those that hold English sentences together.

    >>> [*content_words("I don't like the SOUP, Ann's soup of 2024")]
    ['soup', 'ann', 'soup', '2024']
    """
    for found in _WORD.findall(text.lower().replace("\u2019", "'")):
        word = found.removesuffix("'s")
        if word not in STOP_WORDS:
            yield word
