"""The frozen layers below those that are trained: what they make of a document is computed once, and kept on disk.

With LoRA in the last layers of a decoder the first ones never change, and what they make of a document that is read by
itself (`models.packing`) is a function of this document alone, to the bit. So a step that meets it again reads its
states from a file. The file is as private as the text, has no name, and is gone with the process.

Steps with and without it compute the same bits: that is tried on public tokens, and a model in which it is otherwise
computes all of its layers each time.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from rayprivacy.core.files import private_directory
from rayprivacy.dpsgd.batches import Document, Row, row_of, rows
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.models import packing

MOST_BYTES = 4 << 30  # of states on disk; documents that come later are computed each time
_TRIED = (5, 3)  # lengths of public documents
_PAD = 0


class _Reached(Exception):  # noqa: N818  nothing is wrong: the layers above need not run
    """Carries the states out of a forward pass."""


class LowerLayers:
    """States below the first trained layer of a causal model that reads rows, by document; takes the model over."""

    def __init__(self, model: Any, folder: Path, tokens: int, low_precision: bool = False) -> None:
        self._model, self._tokens, self._low_precision = model, tokens, low_precision
        layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
        count = next((at for at, layer in enumerate(layers) if _trains(layer)), 0)
        self._lower, self._first = layers[:count], layers[count : count + 1]
        for layer in self._lower:
            layer.forward = partial(_given_or_computed, layer.forward)
        self._file = tempfile.TemporaryFile(dir=private_directory(folder))  # noqa: SIM115
        self._kept: dict[bytes, int] = {}  # where the states of a document begin
        self._end = 0
        self._like = torch.empty(0)  # states of no token

    def work(self) -> bool:
        """Whether there are such layers, and losses with their states have the bits that they have without."""
        if not self._lower or _trains(packing.causal(self._model).get_input_embeddings()):
            return False
        units = [[Document(np.arange(length, dtype=np.int32), 1)] for length in _TRIED]
        try:
            row = row_of(units, self._tokens, _PAD)
            (filled,) = self.filled([row])
            with torch.no_grad():
                one, other = (row_losses(self._model, each, self._low_precision) for each in (row, filled))
        except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return False
        return torch.equal(one, other)

    def filled(self, batches: Sequence[Any]) -> list[Row]:
        """The rows with the states of their documents, which are computed where there are none yet."""
        new = self._computed([document for row in batches for document in _documents(row)])
        return [replace(row, states=self._states(row, new)) for row in batches]

    def _computed(self, documents: list[bytes]) -> dict[bytes, Tensor]:
        """States of those documents that are not in the file, into which they are written while there is room."""
        missing = {ids for ids in documents if _key(ids) not in self._kept}
        units = [
            [Document(np.append(np.frombuffer(ids, np.int64), _PAD).astype(np.int32), 1)] for ids in sorted(missing)
        ]
        found = {}
        for row in rows(units, self._tokens, _PAD):
            states = self._below(row)
            self._like = states[:0]
            for ids, own in zip(_documents(row), row.documents.of(states), strict=True):
                found[_key(ids)] = own
                self._keep(_key(ids), own)
        return found

    @torch.no_grad()
    def _below(self, row: Row) -> Tensor:
        """What the lower layers make of a row, [tokens, width], on the CPU."""
        device = next(self._model.parameters()).device

        def stop(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            raise _Reached(args[0] if args else named["hidden_states"])

        handle = self._first[0].register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=self._low_precision):
                packing.causal(self._model).base_model(
                    input_ids=row.ids.to(device),
                    position_ids=row.positions.to(device),
                    documents=row.documents,
                    use_cache=False,
                )
        except _Reached as reached:
            states: Tensor = reached.args[0]
            return states[0].cpu()
        finally:
            handle.remove()
        raise ValueError("the model has no layer where its states were to be taken")

    def _keep(self, key: bytes, states: Tensor) -> None:
        blob = _bytes(states)
        if self._end + len(blob) > MOST_BYTES:
            return
        try:
            written = os.pwrite(self._file.fileno(), blob, self._end)
        except OSError:  # the disk is full, and the states can be computed again
            return
        if written == len(blob):
            self._kept[key] = self._end
            self._end += written

    def _states(self, row: Row, new: dict[bytes, Tensor]) -> Tensor:
        parts = [self._of(ids, length, new) for ids, length in zip(_documents(row), row.documents.lengths, strict=True)]
        return torch.cat([*parts, self._like.new_zeros(row.documents.rest, self._like.shape[1])])[None]

    def _of(self, ids: bytes, length: int, new: dict[bytes, Tensor]) -> Tensor:
        key = _key(ids)
        if key in new:
            return new[key]
        size = length * self._like.shape[1] * self._like.element_size()
        read = bytearray(os.pread(self._file.fileno(), size, self._kept[key]))
        return torch.frombuffer(read, dtype=self._like.dtype).view(length, -1)


def _given_or_computed(forward: Callable[..., Any], hidden: Tensor, *args: Any, **named: Any) -> Any:
    states = named.pop("states", None)
    return forward(hidden, *args, **named) if states is None else states


def _documents(row: Row) -> list[bytes]:
    """The tokens of each document of a row."""
    return [part.numpy().tobytes() for part in row.documents.of(row.ids[0])]


def _key(ids: bytes) -> bytes:
    return hashlib.blake2b(ids, digest_size=20).digest()


def _bytes(states: Tensor) -> bytes:
    return states.contiguous().view(torch.uint8).numpy().tobytes()


def _trains(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
