"""The shape of text: topics, which are clusters by meaning, and lengths in words. All of it is public.

Source: Yu et al. (ICML 2024), "Privacy-Preserving Instructions for Aligning Large Language Models": text of the
released model is embedded by a public model and clustered, and each private text votes for the cluster nearest to it.
Ours votes for a length besides.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save
from sklearn.cluster import KMeans

from rayprivacy.core.artifacts import digest_array, digest_json
from rayprivacy.matching.settings import MatchConfig
from rayprivacy.models.sentence_model import SentenceModel

# Words from which on a text is of the next length; the last is open. About equal steps of the logarithm.
LENGTH_EDGES = (2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 60, 100)
LENGTHS = len(LENGTH_EDGES) + 1
_STARTS, _SEED = 4, 0
Cells = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A partition of texts by topic, and another one by length.

    Attributes:
        centres: of the topics, float32 [topics, width], of length 1.
    """

    centres: npt.NDArray[np.float32]

    @staticmethod
    def of(texts: list[str], model: SentenceModel, config: MatchConfig) -> "Shape":
        """The topics of public texts; fewer than there should be where there are not so many different texts."""
        distinct = list(dict.fromkeys(texts))
        vectors = model.vectors(distinct)
        clusters = KMeans(min(config.topics, len(distinct)), n_init=_STARTS, random_state=_SEED).fit(vectors)
        centres = clusters.cluster_centers_
        return Shape((centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32))

    @property
    def blocks(self) -> tuple[int, int]:
        """How many topics and lengths there are."""
        return len(self.centres), LENGTHS

    def cells(self, texts: list[str], model: SentenceModel) -> Cells:
        """The topic and the length of each text, counted from 0 each, [texts, 2]."""
        nearest = (model.vectors(texts).astype(np.float32) @ self.centres.T).argmax(axis=1) if texts else []
        return np.column_stack([np.asarray(nearest, np.int64), lengths(texts)])

    def question(self, model: SentenceModel) -> str:
        """Digest of what a text is asked: its length, and which topic it is nearest to by what a model sees in it."""
        return digest_json([digest_array(self.centres), list(LENGTH_EDGES), model.digest])

    def state(self) -> bytes:
        """The shape as a safetensors file."""
        return save({"centres": self.centres})

    @staticmethod
    def restored(state: bytes) -> "Shape":
        """The shape of such a file."""
        return Shape(load(state)["centres"])


def lengths(texts: list[str]) -> Cells:
    """The length of each text as the number of its bin, from 0.

    >>> lengths(["one", "one two", "word " * 300]).tolist()
    [0, 1, 14]
    """
    words = [len(text.split()) for text in texts]
    return np.searchsorted(LENGTH_EDGES, words, side="right").astype(np.int64)
