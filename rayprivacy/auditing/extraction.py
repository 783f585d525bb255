"""Training-data extraction (Carlini et al., USENIX Security 2021): sample, rank, and count what comes out verbatim.

The attacker samples many texts behind public prefixes, and puts those first that the model finds much likelier than
they should be: by its loss divided by the text's size under zlib, or by its loss divided by that of a public model. An
auditor knows the private texts, and counts how many of the first texts repeat one of them word for word.

Counts only: neither samples nor private texts leave this module.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rayprivacy.auditing.exposure import Losses, leaked
from rayprivacy.auditing.overlap import WORDS, Overlap
from rayprivacy.auditing.secrets import Secret
from rayprivacy.core.errors import ConfigError


@dataclass(frozen=True)
class Extraction:
    """What the attack counted.

    Attributes:
        samples: distinct texts that were sampled.
        verbatim: samples that share a run of words with a private text.
        top: how many samples the attacker looks at first.
        verbatim_by_zlib: how many of the first ones do so, by loss / zlib size.
        verbatim_by_reference: the same by loss / loss of the public model.
        secrets: canary secrets that stand in some sample.
    """

    samples: int
    verbatim: int
    top: int
    verbatim_by_zlib: int
    verbatim_by_reference: int
    secrets: int


def extract(
    sampled: Sequence[str],
    loss: Losses,
    reference: Losses,
    private_texts: Iterable[str],
    secrets: Sequence[Secret] = (),
    *,
    top: int = 100,
    words: int = WORDS,
) -> Extraction:
    """Rank sampled texts, and count the verbatim ones.

    Args:
        sampled: what the model wrote behind public prefixes; equal texts count once.
        loss: of the attacked model, summed over a text.
        reference: of a public model.
        private_texts: of the users it was trained on.
        secrets: of canaries, if any were planted.
        top: how many of the ranked texts the attacker looks at.
        words: words in a row that count as verbatim.

    Raises:
        ConfigError: nothing was sampled, or top is not positive.
    """
    texts = [text for text in dict.fromkeys(sampled) if text.strip()]
    if not texts or top < 1:
        raise ConfigError(f"there are {len(texts)} sampled texts and top is {top}: sample some, and look at some.")
    verbatim = Overlap(texts, words).shared_with(private_texts)
    own = loss(texts)
    orders = [own / zlib_sizes(texts), own / np.maximum(reference(texts), 1e-9)]
    by_zlib, by_reference = (len(verbatim & set(np.argsort(each, kind="stable")[:top].tolist())) for each in orders)
    found = sum(leaked(secrets, texts))
    return Extraction(len(texts), len(verbatim), min(top, len(texts)), by_zlib, by_reference, found)


def zlib_sizes(texts: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bytes of each text under zlib: how much it holds that is not repetition."""
    return np.array([len(zlib.compress(text.encode())) for text in texts], dtype=np.float64)
