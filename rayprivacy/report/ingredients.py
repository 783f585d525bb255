"""What of a recipe may stand on a card: the method, the name of the base model, and the public values of labels.

Paths, URLs and accounts stay in the recipe.
"""

from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.report.format import markdown
from rayprivacy.report.inputs import Lenient, read_bytes

METHODS = {
    "seqpate": "SeqPATE (Tian et al., NeurIPS 2022): many teachers, each trained on one shard of private text, voted on"
    " the next token of public sentences, and a student learned from the noisy sums of their votes.",
    "generator": "the DP-SGD generator (Yue et al., ACL 2023): a language model was fine-tuned with clipped, noisy"
    " gradients of keyed samples of private text; each text stood behind its control code, if it has any.",
}
OPENER = "Hello, how are you"
SHOWN = 100


class _Base(Lenient):
    base: str = "smollm2-135m"


class _Corpus(Lenient):
    labels: list[str] = Field(default_factory=list)


class _Codes(Lenient):
    values: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class Ingredients(Lenient):
    """The public part of a recipe, whatever its method."""

    method: str
    model: _Base = _Base()
    corpus: _Corpus = _Corpus()
    codes: _Codes = _Codes()

    @property
    def method_sentence(self) -> str:
        """What made the model, to stand after "made by"."""
        return METHODS[self.method]

    @property
    def prompt(self) -> str:
        """Something the model can continue: its first control code, where it knows any."""
        if not self.codes.values:
            return OPENER
        return Codes(CodesConfig(values=self.codes.values), self.corpus.labels).text(0)

    def sentences(self) -> list[str]:
        """Base model and labels, as paragraphs of Markdown."""
        told = [f"Base model: {markdown(public_name(self.model.base))}."]
        if not self.codes.values:
            return told
        told.append("A text has these labels; their lists are public, and what is on none is `other`:")
        told.append("\n".join(f"- {markdown(label)}: {_listed(values)}" for label, values in self.codes.values.items()))
        return told


def public_name(base: str) -> str:
    """A base model without the folders it lies in.

    >>> public_name("/models/ours/base"), public_name("org/name"), public_name("smollm2-135m")
    ('base', 'org/name', 'smollm2-135m')
    """
    parts = base.replace("\\", "/").rstrip("/").split("/")
    is_hub_id = len(parts) <= 2 and parts[0] not in ("", ".", "..", "~")
    return "/".join(parts) if is_hub_id else parts[-1]


def read_ingredients(path: Path) -> Ingredients:
    """Read the public part of a recipe.

    Raises:
        ConfigError: the file is missing or no recipe, or its method is unknown.
    """
    try:
        made_of = Ingredients.model_validate(yaml.safe_load(read_bytes(path)))
    except (yaml.YAMLError, ValidationError):
        raise ConfigError(f"{path} is no recipe of a run: let the run write it again.") from None
    if made_of.method not in METHODS:
        raise ConfigError(f"{path} names a method that has no card: use one of {', '.join(METHODS)}.")
    return made_of


def _listed(values: tuple[str, ...]) -> str:
    more = f", and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(f'"{markdown(value)}"' for value in values[:SHOWN]) + more
