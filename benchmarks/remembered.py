"""A frozen encoder that computes each text once and remembers its states: what stands above it is then cheap to train.

An encoder whose weights do not change and that has no dropout says the same of a text at every step. Its padding is
masked, so that what else is in a batch changes no more than the last bits.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput


class RememberedEncoder(nn.Module):
    """Stands in the place of a BERT.

    Args:
        encoder: frozen.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._encoder, self._states = encoder, dict[bytes, Tensor]()

    def __deepcopy__(self, memo: Any) -> "RememberedEncoder":
        return self  # copies of the model share what is remembered

    def get_input_embeddings(self) -> nn.Module:
        """See `transformers.PreTrainedModel`."""
        found: nn.Module = self._encoder.get_input_embeddings()
        return found

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor, **places: Any) -> BaseModelOutput:
        """The last states [rows, width, hidden], zero where there is padding."""
        lengths = attention_mask[:, 0, 0].sum(-1).tolist()
        names = [ids[:length].numpy().tobytes() for ids, length in zip(input_ids, lengths, strict=True)]
        new = [row for row, name in enumerate(names) if name not in self._states]
        if new:
            given = {name: value[new] for name, value in places.items() if isinstance(value, Tensor)}
            found = self._encoder(input_ids=input_ids[new], attention_mask=attention_mask[new], **given)
            for row, states in zip(new, found.last_hidden_state, strict=True):
                self._states[names[row]] = states[: lengths[row]].clone()
        known = [self._states[name] for name in names]
        whole = torch.zeros(*input_ids.shape, known[0].shape[-1])
        for row, states in zip(whole, known, strict=True):
            row[: len(states)] = states
        return BaseModelOutput(last_hidden_state=whole)
