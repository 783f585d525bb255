"""Encoders of texts: vectors of length 1, which lie near each other where a question is about a passage.

`static` adds up what the tokens of a text bring, its tokens' vectors in a base model. Learnt are a weight for each
token and a scale for each direction; both are folded into one table, a `StaticEmbedding` of sentence-transformers.
Any other base is an encoder of Hugging Face, and a text's vector is the mean of its states. Either folder is loaded by
`SentenceTransformer(FOLDER)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as InTurn
from transformers import AutoModel

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import SHARED, made_folder, read_json, write_atomic, write_json
from rayprivacy.models import loading
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.sources import MINILM, resolve_base
from rayprivacy.models.trainable import trainable
from rayprivacy.questions.bases import RETRIEVER, STATIC, named
from rayprivacy.questions.overlap import Idf
from rayprivacy.questions.settings import RetrieverConfig

Array = npt.NDArray[np.float32]
WIDTH = 384  # of the vectors of `static`, at most
_MODULES = {"StaticEmbedding": "", "Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
_TABLE, _ROWS, _LENGTH = "model.safetensors", "embedding.weight", "sentence_bert_config.json"


class Encoder(torch.nn.Module, ABC):
    """What makes vectors of texts."""

    at_once: int  # texts that are encoded together
    rate: float  # at which it learns well

    @abstractmethod
    def forward(self, texts: Sequence[str]) -> torch.Tensor:
        """The vectors of texts, [texts, width]."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the folder that `load_encoder` reads."""

    @abstractmethod
    def learning(self) -> "Encoder":
        """A copy that can be trained."""

    def learnt(self) -> list[torch.nn.Parameter]:
        """What is trained."""
        return [each for each in self.parameters() if each.requires_grad]

    @abstractmethod
    def settled(self) -> "Encoder":
        """The same when nothing more is learnt, as it is saved."""

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> Array:
        """The vectors of texts, [texts, width]."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        found: list[Array] = [np.zeros(0, np.float32)] * len(texts)
        for start in range(0, len(order), self.at_once):
            batch = order[start : start + self.at_once]
            for place, vector in zip(batch, self([texts[place] for place in batch]).numpy(), strict=True):
                found[place] = vector
        return np.stack(found) if found else np.zeros((0, 0), np.float32)


class StaticEncoder(Encoder):
    """Sums of token vectors."""

    at_once, rate = 256, 0.02

    def __init__(self, tokenizer: Tokenizer, table: torch.Tensor) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.tokenizer.encode_special_tokens = True  # a control token that a text spells is text
        self.table = torch.nn.Parameter(table, requires_grad=False)
        self.weights = torch.nn.Parameter(torch.zeros(len(table)))  # logarithms
        self.scales = torch.nn.Parameter(torch.zeros(table.shape[1]))  # of directions, likewise

    @staticmethod
    def of(base: str, texts: Sequence[str], width: int = WIDTH, idf: bool = True) -> "StaticEncoder":
        """The token vectors of a model in the directions that vary most, weighted by how rare tokens are.

        Args:
            base: of which token vectors and tokenizer are taken, nothing else.
            texts: released or public ones, which say how rare tokens are.
            width: of the vectors, at most that of the model's.
            idf: without it all tokens weigh the same.
        """
        with loading.telling(base):
            source = resolve_base(base)
            tokenizer = Tokenizer.from_str(loading.load_tokenizer(source).backend_tokenizer.to_str())
            table = loading.load_weights(base, AutoModel, source, dtype=torch.float32).get_input_embeddings().weight
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.normalizer = InTurn([Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])])
        table = table.detach() - table.detach().mean(dim=0)
        found = StaticEncoder(tokenizer, table @ torch.linalg.eigh(table.T @ table).eigenvectors[:, -width:])
        if idf:
            rare = Idf.of(found.ids(texts))
            found.table.mul_(torch.tensor([rare[token] for token in range(len(table))])[:, None])
        return found.settled()

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts."""
        return [each.ids for each in self.tokenizer.encode_batch([*texts], add_special_tokens=False)]

    def forward(self, texts: Sequence[str]) -> torch.Tensor:
        """The vectors of texts, [texts, width]."""
        ids = self.ids(texts)
        flat = torch.tensor([token for each in ids for token in each], dtype=torch.long)
        starts = torch.tensor([0, *map(len, ids)]).cumsum(0)[:-1]
        weights = self.weights[flat].exp()
        summed = torch.nn.functional.embedding_bag(flat, self.table, starts, mode="sum", per_sample_weights=weights)
        return torch.nn.functional.normalize(summed * self.scales.exp(), dim=1)

    def learning(self) -> "StaticEncoder":
        """A copy that can be trained."""
        return StaticEncoder(self.tokenizer, self.table.detach().clone())

    @torch.no_grad()
    def settled(self) -> "StaticEncoder":
        """The same with what was learnt folded into its table."""
        folded = StaticEncoder(self.tokenizer, self.table * self.weights.exp()[:, None] * self.scales.exp())
        folded.requires_grad_(False)
        return folded

    def save(self, folder: Path) -> None:
        """Write the table and its tokenizer."""
        save_file({_ROWS: self.table.detach().contiguous()}, folder / _TABLE)
        write_atomic(folder / "tokenizer.json", self.tokenizer.to_str().encode(), SHARED)
        _write_modules(folder, "StaticEmbedding", "Normalize")

    @staticmethod
    def load(folder: Path) -> "StaticEncoder":
        """Read what `save` has written."""
        table = load_file(folder / _TABLE)[_ROWS]
        return StaticEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")), table).settled()


class TextEncoder(Encoder):
    """Means of the states of a Hugging Face encoder."""

    at_once, rate = 32, 5e-5

    def __init__(self, tokenizer: Any, model: Any, max_tokens: int) -> None:
        super().__init__()
        self.tokenizer, self.model, self.max_tokens = tokenizer, model, max_tokens

    @staticmethod
    def load(base: str, max_tokens: int) -> "TextEncoder":
        """Load a base, or a saved one."""
        with loading.telling(base):
            source = resolve_base(base)
            model = loading.load_weights(base, AutoModel, source, dtype=torch.float32)
            loading.check_positions(model, max_tokens)
            tokenizer = loading.load_tokenizer(source)
        if tokenizer.pad_token_id is None:
            raise ConfigError(f"model.base is {base!r}: its tokenizer does not pad, as those of encoders do: name one.")
        return TextEncoder(tokenizer, model, max_tokens)

    def forward(self, texts: Sequence[str]) -> torch.Tensor:
        """The vectors of texts, [texts, width]."""
        how = {"padding": True, "truncation": True, "max_length": self.max_tokens, "return_tensors": "pt"}
        read = self.tokenizer([*texts], split_special_tokens=True, **how)
        states = self.model(**read).last_hidden_state * read["attention_mask"][..., None]
        return torch.nn.functional.normalize(states.sum(dim=1), dim=1)

    def learning(self) -> "TextEncoder":
        """A copy of which all but the token vectors can be trained, without dropout."""
        model = trainable(Backbone(self.tokenizer, 0, 0, model=self.model), AdapterConfig(kind="full"))
        model.get_input_embeddings().requires_grad_(False)
        return TextEncoder(self.tokenizer, model, self.max_tokens)

    def settled(self) -> "TextEncoder":
        """The same, frozen."""
        self.requires_grad_(False)
        return self

    def save(self, folder: Path) -> None:
        """Write model and tokenizer."""
        with no_progress_bars():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        write_json(folder / _LENGTH, {"max_seq_length": self.max_tokens, "do_lower_case": False}, SHARED)
        pooling = made_folder(folder / _MODULES["Pooling"], "the retriever's folder")
        width = {"word_embedding_dimension": self.model.config.hidden_size, "pooling_mode_mean_tokens": True}
        write_json(pooling / "config.json", width, SHARED)
        _write_modules(folder, "Transformer", "Pooling", "Normalize")


def fresh_encoder(config: RetrieverConfig, texts: Sequence[str]) -> Encoder:
    """The encoder that training begins with; `texts` are released or public."""
    if config.base == STATIC:
        return StaticEncoder.of(MINILM, texts)
    with named(RETRIEVER):
        return TextEncoder.load(config.base, config.max_tokens)


def load_encoder(folder: Path) -> Encoder:
    """What `Encoder.save` has written."""
    if (folder / _LENGTH).is_file():
        return TextEncoder.load(str(folder), int(read_json(folder / _LENGTH)["max_seq_length"]))
    with loading.telling(str(folder)):
        return StaticEncoder.load(folder)


def _write_modules(folder: Path, *names: str) -> None:
    """The file by which sentence-transformers knows what a folder holds."""
    modules = [
        {"idx": place, "name": str(place), "path": _MODULES[name], "type": f"sentence_transformers.models.{name}"}
        for place, name in enumerate(names)
    ]
    write_json(folder / "modules.json", modules, SHARED)
