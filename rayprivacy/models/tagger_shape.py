"""What a tagger can say, and how it is read, as it stands in the configuration of a saved one."""

import json
from pathlib import Path
from typing import Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.tagger_settings import TaggerConfig
from rayprivacy.models.tags import Tags

CAUSAL = ("llama", "gpt2")


def describe(config: TaggerConfig, shape: Any, marks: tuple[int, int]) -> None:
    """Write it into a configuration of Hugging Face; the marks are the tokens before and behind a text."""
    names = config.tags.names
    shape.num_hidden_layers = config.layers or shape.num_hidden_layers
    shape.id2label, shape.label2id = dict(enumerate(names)), {name: at for at, name in enumerate(names)}
    shape.use_cache = False
    shape.tagger = {
        "start": marks[0],
        "end": marks[1],
        "read_words_at": "last token" if shape.model_type in CAUSAL else "first token",
        "crf": config.crf,
        "words": len(config.tags.all_words),
    }


def saved_tagger(folder: Path) -> TaggerConfig:
    """How a saved tagger is loaded again: with the lists, and the number format, that it was saved with."""
    config = _saved(folder)
    try:
        names = config["id2label"]
        tags, crf = Tags.of([names[str(at)] for at in range(len(names))]), bool(config["tagger"]["crf"])
        return TaggerConfig(base=str(folder), dtype=config["dtype"], crf=crf, intents=tags.intents, slots=tags.slots)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{folder} holds no tagger that can be read ({type(error).__name__}): name another."
        ) from None


def model_type_of(base: str) -> str | None:
    """The family of a saved model by its configuration; None where there is none."""
    config = _saved(Path(base).expanduser())
    return str(config["model_type"]) if "model_type" in config else None


def is_tagger(folder: Path) -> bool:
    """Whether a saved model is a tagger, by its configuration."""
    return "tagger" in _saved(folder)


def _saved(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def is_causal(model: Any) -> bool:
    """Whether a tagger sees no further than the token that it is at."""
    return bool(model.config.model_type in CAUSAL)
