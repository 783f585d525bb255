"""A BERT that reads a claim with the sentences nearest to it, and says which of three labels is right."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from rayprivacy.core.console import nobody
from rayprivacy.models import loading
from rayprivacy.models.backbone import Backbone, fast_format
from rayprivacy.models.pretraining import SEED, Objective, endlessly, fit
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.sources import resolve_base
from rayprivacy.models.trainable import START_SEED, trainable
from rayprivacy.questions.attribution import LABELS
from rayprivacy.questions.bases import JUDGE, named, require_bert
from rayprivacy.questions.settings import JudgeConfig

Pair = tuple[str, str]
_AT_ONCE = 16
_HELD = 64  # of which the loss is measured


@dataclass(frozen=True)
class ClaimEncoder:
    """An encoder with a head of three labels, and how much it reads."""

    model: Any
    tokenizer: Any
    max_tokens: int

    @staticmethod
    def load(base: str, max_tokens: int) -> "ClaimEncoder":
        """Load a saved one, or a base whose head is new, always from the same numbers.

        Raises:
            ConfigError: there is no such base, or it is no BERT with so many positions.
        """
        with named(JUDGE), loading.telling(base), torch.random.fork_rng(devices=[]):
            source = resolve_base(base)
            shape = AutoConfig.from_pretrained(source, trust_remote_code=False)
            require_bert(base, shape.model_type, getattr(shape, "max_position_embeddings", None), max_tokens)
            shape.id2label, shape.label2id = dict(enumerate(LABELS)), {name: at for at, name in enumerate(LABELS)}
            torch.manual_seed(START_SEED)
            options = {"config": shape, "dtype": torch.float32, "attn_implementation": "sdpa"}
            loader = AutoModelForSequenceClassification
            model = loading.load_weights(base, loader, source, new=("classifier",), **options)
            return ClaimEncoder(model, loading.load_tokenizer(source), max_tokens)

    @staticmethod
    def trained(
        examples: Sequence[tuple[Pair, int]], held: Sequence[tuple[Pair, int]], config: JudgeConfig
    ) -> "ClaimEncoder":
        """Train the upper half of the base's layers on pairs with the numbers of their labels."""
        assert config.encoder is not None
        fresh = ClaimEncoder.load(config.encoder, config.max_tokens)
        tokenizer, bert = fresh.tokenizer, fresh.model.bert
        fresh.model.frozen_parts = [bert.embeddings, *bert.encoder.layer[: len(bert.encoder.layer) // 2]]
        backbone = Backbone(tokenizer, tokenizer.cls_token_id, tokenizer.sep_token_id, model=fresh.model)
        model = trainable(backbone, AdapterConfig(kind="full"))
        steps = -(-config.epochs * len(examples) // config.batch)
        drawn = endlessly(examples, np.random.default_rng(SEED))
        batches = (sorted(islice(drawn, config.batch), key=_length) for _ in range(steps))
        objective = Objective(fresh._loss, len, _AT_ONCE)
        fit(model, objective, batches, held[:_HELD], config.learning_rate, nobody, "judge", guarded_steps=steps)
        return ClaimEncoder(model.eval().requires_grad_(False), tokenizer, config.max_tokens)

    @torch.no_grad()
    def logits(self, pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
        """Of each label for each pair, [pairs, labels]."""
        order = sorted(range(len(pairs)), key=lambda place: _length((pairs[place], 0)))
        found = np.zeros((len(pairs), len(LABELS)))
        for start in range(0, len(order), _AT_ONCE):
            batch = order[start : start + _AT_ONCE]
            found[batch] = self._scores(self.model, [pairs[place] for place in batch]).numpy()
        return found

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer for `from_pretrained`."""
        with no_progress_bars():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _loss(self, model: Any, examples: Sequence[tuple[Pair, int]]) -> torch.Tensor:
        target = torch.tensor([number for _, number in examples])
        scores = self._scores(model, [pair for pair, _ in examples])
        return torch.nn.functional.cross_entropy(scores, target, reduction="sum")

    def _scores(self, model: Any, pairs: Sequence[Pair]) -> torch.Tensor:
        how: dict[str, Any] = {"truncation": "longest_first", "max_length": self.max_tokens, "verbose": False}
        said, near = zip(*pairs, strict=True)
        read = self.tokenizer([*said], [*near], padding=True, return_tensors="pt", split_special_tokens=True, **how)
        with torch.autocast("cpu", getattr(torch, fast_format()), enabled=fast_format() == "bfloat16"):
            scores: torch.Tensor = model(**read).logits
        return scores.float()


def _length(example: tuple[Pair, int]) -> int:
    return sum(map(len, example[0]))
