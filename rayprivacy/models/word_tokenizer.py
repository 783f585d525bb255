"""A tokenizer of whole words with their letters, for models that read both: a word's number, then its first bytes.

    "play zydeco"  ->  play, b'p', b'l', b'a', b'y', <unknown>, b'z', b'y', b'd', b'e', b'c', b'o'

Bytes are 0 to 255 and words the numbers behind. Whether a word is on the public list depends on that word alone.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

BYTES, START, END, UNKNOWN, FIRST_WORD = 256, 256, 257, 258, 259
MOST_BYTES = 16  # of a word that are read
_FILE = "words.txt"


class WordTokenizer:
    """Numbers of words and bytes; called as fast tokenizers of Hugging Face are, for one text.

    The public list of words is in lower case, and so is a word looked up.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)

    def __len__(self) -> int:
        return FIRST_WORD + len(self.words)

    def __call__(self, text: str, **_: Any) -> dict[str, list[Any]]:
        """`input_ids`, and in `offset_mapping` the place of each in the text, whose words are single blanks apart."""
        ids, places, begin = [], [], 0
        for word in text.split():
            letters = word.encode(errors="replace")[:MOST_BYTES]
            ids += [self._numbers.get(word.lower(), UNKNOWN), *letters]
            places += [(begin, begin + len(word))] * (1 + len(letters))
            begin += len(word) + 1
        return {"input_ids": ids, "offset_mapping": places}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, FIRST_WORD)}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the list, a word on each line."""
        (Path(folder) / _FILE).write_text("\n".join(self.words), encoding="utf-8")

    @staticmethod
    def from_pretrained(folder: str | Path) -> "WordTokenizer":
        """Read the list that was saved."""
        return WordTokenizer((Path(folder) / _FILE).read_text(encoding="utf-8").split("\n"))
