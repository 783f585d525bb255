"""all-MiniLM-L6-v2 (Reimers and Gurevych, EMNLP 2019; Wang et al., NeurIPS 2020): a vector for a sentence, by meaning.

It was trained so that sentences of like meaning lie near each other, and has six layers and 22 million parameters. It
comes from PyPI as a plain folder. A text's vector is the mean of its tokens' states, of length 1.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel

from rayprivacy.core.private import digest_json
from rayprivacy.models.backbone import model_digest, tokenizer_rules
from rayprivacy.models.loading import load_tokenizer
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.sources import sentence_weights

TOKENS = 64
_BATCH = 64


@dataclass(frozen=True)
class SentenceModel:
    """A Hugging Face encoder of sentences, in eval mode, with its tokenizer."""

    model: Any
    tokenizer: Any

    @staticmethod
    def packaged() -> "SentenceModel":
        """Load the packaged one."""
        folder = sentence_weights()
        with no_progress_bars():
            tokenizer = load_tokenizer(folder)
            model = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        return SentenceModel(model.eval().requires_grad_(False), tokenizer)

    @cached_property
    def digest(self) -> str:
        """Names its weights, its tokenizer and how much of a text it reads."""
        return digest_json([model_digest(self.model), tokenizer_rules(self.tokenizer), TOKENS])

    def vectors(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """The vector of each text's first `TOKENS` tokens, [texts, width], of length 1."""
        ids = [
            self.tokenizer.encode(text, truncation=True, max_length=TOKENS, split_special_tokens=True) for text in texts
        ]
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        found = np.zeros((len(ids), self.model.config.hidden_size))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            found[batch] = self._pooled([ids[place] for place in batch])
        return found

    @torch.no_grad()
    def _pooled(self, ids: list[list[int]]) -> npt.NDArray[np.float64]:
        longest, pad = max(map(len, ids)), self.tokenizer.pad_token_id
        padded = torch.tensor([each + [pad] * (longest - len(each)) for each in ids])
        lengths = torch.tensor([len(each) for each in ids])
        inside = (torch.arange(longest)[None, :] < lengths[:, None]).long()
        hidden = self.model(input_ids=padded, attention_mask=inside).last_hidden_state
        summed = (hidden * inside[..., None]).sum(1)
        return np.asarray(torch.nn.functional.normalize(summed, dim=1).numpy(), float)


@lru_cache(maxsize=1)
def packaged_on_one_thread() -> SentenceModel:
    """The packaged model in a task; the order of floating-point sums must not depend on a node's cores."""
    torch.set_num_threads(1)
    return SentenceModel.packaged()
