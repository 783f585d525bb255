"""Which words two corpora share. Words are runs of letters, digits and underscores, in lower case and one Unicode form.

The same words serve the search for copied passages (see `runs`): a copy stays one when capitals, accents' encoding or
punctuation change.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"\w+")


def normal_words(text: str) -> list[str]:
    """The words of a text, case-folded and in Unicode NFKC.

    >>> normal_words("Don't PANIC!")
    ['don', 't', 'panic']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def shared_words(real: Iterable[str], synthetic: Iterable[str]) -> dict[str, float]:
    """How much the vocabularies have in common.

    Returns:
        `word_type_overlap`: word types of both, over those of either (Jaccard); and `new_word_share`: the share of
        synthetic running words that no real text has. Without any words: 0.
    """
    ours = Counter(word for text in synthetic for word in normal_words(text))
    theirs = {word for text in real for word in normal_words(text)}
    either = len(theirs | ours.keys())
    new = sum(count for word, count in ours.items() if word not in theirs)
    return {
        "word_type_overlap": len(theirs & ours.keys()) / either if either else 0.0,
        "new_word_share": new / ours.total() if ours else 0.0,
    }
