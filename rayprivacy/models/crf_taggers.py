"""Classes of Hugging Face for token classification, with a CRF among their weights.

`transformers` alone loads what they save as well (`AutoModelForTokenClassification`), and leaves the CRF out.
"""

from typing import Any

from transformers import BertForTokenClassification, GPT2ForTokenClassification, LlamaForTokenClassification

from rayprivacy.models.crf import Crf


class _WithCrf:
    """Adds the CRF of the word labels, whose number is in the configuration (`tagger.words`)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.crf = Crf(config.tagger["words"])
        self.post_init()  # type: ignore[attr-defined]


class BertForTokenClassificationWithCrf(_WithCrf, BertForTokenClassification):
    """A BERT with a CRF."""


class LlamaForTokenClassificationWithCrf(_WithCrf, LlamaForTokenClassification):
    """A Llama with a CRF."""


class GPT2ForTokenClassificationWithCrf(_WithCrf, GPT2ForTokenClassification):
    """A GPT-2 with a CRF."""


WITH_CRF: dict[str, Any] = {
    "bert": BertForTokenClassificationWithCrf,
    "llama": LlamaForTokenClassificationWithCrf,
    "gpt2": GPT2ForTokenClassificationWithCrf,
}
