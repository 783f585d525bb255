"""Embeddings of texts, made offline in ways that fail differently; no figure should hang on one of them.

- `minilm-l6`: a model that was trained to put sentences of like meaning near each other (see `models.sentences`).
- `tfidf`: words and pairs of words, weighted by TF-IDF and reduced by a truncated SVD: latent semantic analysis
  (Deerwester et al., 1990). It knows words, not what they mean, and cannot be fooled by a model's blind spots.
- A base model: each text is the mean state of its first `TOKENS` tokens after the first `LAYERS` decoder layers. Lower
  layers carry content better than the last one, which is about the next word. The state at the separator before the
  text is left out: it is huge and says nothing. Dimensions are standardised, since a few of a language model's are a
  hundred times the others (Mu and Viswanath, ICLR 2018, remove them altogether).

All are fitted on all texts that are compared, real and synthetic: they end in `DIMENSIONS` dimensions, by PCA or SVD,
and have length 1. Equal texts are the same point, to the last bit: they are embedded once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import FunctionTransformer, normalize

from rayprivacy.core.errors import ConfigError, renamed
from rayprivacy.evaluation.settings import LSA, MINILM
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.layers import ARCHITECTURES, lower_trunk
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.models.settings import ModelConfig

TOKENS = 32
LAYERS = 10
DIMENSIONS = 64
PATTERN = r"(?u)\w+|[^\w\s]"  # every text that is not blank has a token
_BATCH = 64
Matrix = npt.NDArray[np.float32]
Embedding = SentenceModel | Backbone | None


def open_base(name: str, option: str = "--base") -> Backbone:
    """Load a base model; `option` is what named it."""
    with renamed({"model.base": option}, ConfigError):
        return load_backbone(ModelConfig(base=name))


def open_embedding(name: str) -> Embedding:
    """Load what makes an embedding."""
    if name == LSA:
        return None
    return SentenceModel.packaged() if name == MINILM else open_base(name, "--embedding")


def embed(corpora: Sequence[list[str]], embedding: Embedding, seed: int = 0) -> list[Matrix]:
    """Features of each text, [texts, dimensions], of length 1."""
    texts = [text for corpus in corpora for text in corpus]
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    places = np.array([distinct[text] for text in texts])
    once = list(distinct)
    found = _latent_semantics(once, places, seed) if embedding is None else _of_model(embedding, once, places)
    ends = np.cumsum([len(corpus) for corpus in corpora])[:-1]
    return [found[part] for part in np.split(places, ends)]


def _latent_semantics(texts: list[str], places: npt.NDArray[np.int64], seed: int) -> Matrix:
    """TF-IDF of distinct texts, by a truncated SVD; `places` says which is each text, so frequent ones weigh more."""
    words = TfidfVectorizer(token_pattern=PATTERN, ngram_range=(1, 2), sublinear_tf=True, min_df=1)
    weighted = words.fit([texts[place] for place in places]).transform(texts)
    reduced = reducer(weighted.shape, DIMENSIONS, seed).fit(weighted[places]).transform(weighted)
    return np.asarray(normalize(reduced), np.float32)


def reducer(shape: tuple[int, int], dimensions: int, seed: int) -> Any:
    """A truncated SVD for a sparse matrix of this shape; one word is a space of its own, which the SVD refuses."""
    if shape[1] < 2:
        return FunctionTransformer(_dense, accept_sparse=True)
    return TruncatedSVD(min(dimensions, *shape), random_state=seed)


def _dense(matrix: Any) -> Any:
    return matrix.toarray()


def _of_model(model: SentenceModel | Backbone, texts: list[str], places: npt.NDArray[np.int64]) -> Matrix:
    if isinstance(model, SentenceModel):
        return _reduced(model.vectors(texts), places)
    states = mean_states(model, texts, LAYERS)
    seen = states[places]
    spread = seen.std(axis=0)
    return _reduced((states - seen.mean(axis=0)) / np.where(spread > 0, spread, 1), places)


def _reduced(vectors: npt.NDArray[np.float64], places: npt.NDArray[np.int64]) -> Matrix:
    seen = vectors[places]
    if not seen.std(axis=0).any():  # one text, over and over: one point
        return np.ones((len(vectors), 1), np.float32)
    size = min(DIMENSIONS, seen.shape[1], len(places))
    reduced = PCA(size, svd_solver="covariance_eigh").fit(seen).transform(vectors)
    return np.asarray(normalize(reduced), np.float32)


def mean_states(backbone: Backbone, texts: list[str], layers: int) -> npt.NDArray[np.float64]:
    """Mean state of each text's first tokens after some layers, the last if there is no cut, [texts, width]."""
    kind, most = backbone.model.config.model_type, backbone.model.config.num_hidden_layers
    trunk = lower_trunk(backbone, min(layers, most)) if kind in ARCHITECTURES else backbone.model.base_model
    documents = [backbone.prefix(text)[: TOKENS + 1] for text in texts]
    order = sorted(range(len(texts)), key=lambda place: len(documents[place]))
    found = np.zeros((len(texts), backbone.width))
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        found[batch] = _pooled(trunk, [documents[place] for place in batch])
    return found


@torch.no_grad()
def _pooled(trunk: torch.nn.Module, documents: list[list[int]]) -> npt.NDArray[np.float64]:
    # Padding comes after the text, where a causal model does not look: no mask is needed.
    longest = max(map(len, documents))
    ids = torch.tensor([each + [0] * (longest - len(each)) for each in documents])
    hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state.float()
    lengths = torch.tensor([len(each) for each in documents])
    inside = (torch.arange(longest)[None, :] < lengths[:, None]).float()
    inside[:, 0] = (lengths == 1).float()  # the separator counts only where there is nothing else
    pooled = (hidden * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)
    return np.asarray(pooled.numpy(), float)
