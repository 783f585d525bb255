"""What a profile asks of a text: public cells by tokens and by script; and of a user, how many texts.

All of it is fixed before any text is read, and looks at one text at a time. A script (Unicode's, by the names of its
letters) is not a language: Latin says nothing of which of a hundred it is.
"""

import unicodedata
from collections import Counter
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RULES = 1  # of this module; what is asked by others is another question, with another charge
Cells = npt.NDArray[np.int64]
# The last number of each cell but the last one, which is open.
RECORDS = (1, 2, 3, 5, 8, 12, 20, 32, 50, 80, 128, 200, 320, 500, 800)  # of a user
TOKENS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of a text
SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Tamil"),
    *("Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Myanmar", "Khmer", "Tibetan", "Georgian"),
    *("Armenian", "Ethiopic", "Hangul", "Hiragana", "Katakana", "Cjk", "another script", "no letters"),
)
BLOCKS = (1, len(RECORDS) + 1, len(TOKENS) + 1, len(SCRIPTS))  # users; and users by records, tokens and script
_ANOTHER, _NO_LETTERS = len(SCRIPTS) - 2, len(SCRIPTS) - 1
_READ = 1000  # characters of a text that decide on its script


def records_cells(records: Cells) -> Cells:
    """The cell of users by how many texts they have.

    >>> records_cells(np.array([1, 4, 5, 1000])).tolist()
    [0, 3, 3, 15]
    """
    return np.searchsorted(RECORDS, records).astype(np.int64)


def tokens_cells(tokens: Cells) -> Cells:
    """The cell of texts by how many tokens they have."""
    return np.searchsorted(TOKENS, tokens).astype(np.int64)


def script_cell(text: str) -> int:
    """The cell of a text by the script of most letters at its beginning.

    >>> [SCRIPTS[script_cell(text)] for text in ("na und?", "ну и что", "42!", "東京 Tokyo")]
    ['Latin', 'Cyrillic', 'no letters', 'Latin']
    """
    text = text[:_READ]
    if text.isascii():
        return 0 if any(map(str.isalpha, text)) else _NO_LETTERS
    found = Counter(map(_script, filter(str.isalpha, text)))
    return min(found, key=lambda cell: (-found[cell], cell)) if found else _NO_LETTERS


@lru_cache(maxsize=1 << 16)
def _script(letter: str) -> int:
    name = unicodedata.name(letter, "").partition(" ")[0].capitalize()
    return SCRIPTS.index(name) if name in SCRIPTS[:_ANOTHER] else _ANOTHER
