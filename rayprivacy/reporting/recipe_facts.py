"""The facts of a recipe that may stand on a card: the method, the name of the base model, the public values of labels.

Paths, URLs and accounts stay in the recipe.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.methods.registry import method_named
from rayprivacy.reporting.format import markdown
from rayprivacy.reporting.inputs import Lenient, read_bytes
from rayprivacy.runs.method import PRETRAINED, Card

OPENER = "Hello, how are you"
SHOWN = 100


class _Base(Lenient):
    base: str = "smollm2-135m"


class _Corpus(Lenient):
    labels: list[str] = Field(default_factory=list)


class _Codes(Lenient):
    values: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class RecipeFacts(Lenient):
    """The public part of a recipe, whatever its method."""

    method: str
    model: _Base = _Base()
    corpus: _Corpus = _Corpus()
    codes: _Codes = _Codes()
    pretrain: dict[str, Any] | None = None

    @property
    def card(self) -> Card:
        """What the method releases, with the models that this recipe makes."""
        card = method_named(self.method).card
        if self.pretrain:
            return card
        return replace(card, models={name: said for name, said in card.models.items() if name not in PRETRAINED})

    @property
    def method_sentence(self) -> str:
        """What made the release, to stand after "made by"."""
        return f"{self.card.citation}: {self.card.sentence}"

    @property
    def prompt(self) -> str:
        """Something the model can continue: its first control code, where it knows any."""
        if not self.codes.values:
            return self.card.opener or OPENER
        return Codes(CodesConfig(values=self.codes.values), self.corpus.labels).text(0)

    def sentences(self) -> list[str]:
        """Base model and labels, as paragraphs of Markdown."""
        further = ", trained further on public text" if self.pretrain else ""
        found = [f"Base model: {markdown(public_name(self.model.base))}{further}."] if self.card.has_model else []
        if not self.codes.values:
            return found
        found.append("A text has these labels; their lists are public, and what is on none is `other`:")
        found.append(
            "\n".join(f"- {markdown(label)}: {_listed(values)}" for label, values in self.codes.values.items())
        )
        return found


def public_name(base: str) -> str:
    """A base model without the folders it lies in.

    >>> public_name("/models/ours/base"), public_name("org/name"), public_name("smollm2-135m")
    ('base', 'org/name', 'smollm2-135m')
    """
    parts = base.replace("\\", "/").rstrip("/").split("/")
    is_hub_id = len(parts) <= 2 and parts[0] not in ("", ".", "..", "~")
    return "/".join(parts) if is_hub_id else parts[-1]


def read_facts(path: Path) -> RecipeFacts:
    """Read the public part of a recipe."""
    try:
        facts = RecipeFacts.model_validate(yaml.safe_load(read_bytes(path)))
    except (yaml.YAMLError, ValidationError):
        raise ConfigError(f"{path} is no recipe of a run: let the run write it again.") from None
    method_named(facts.method)
    return facts


def _listed(values: tuple[str, ...]) -> str:
    more = f", and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(f'"{markdown(value)}"' for value in values[:SHOWN]) + more
