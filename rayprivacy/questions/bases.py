"""Public models that questions are made with, as far as they can be looked at before anything is computed.

A folder says in its `config.json` what model it holds. So an encoder that cannot serve is refused in a plan, and not
when an asker has been trained. This file imports neither torch nor an engine.
"""

from contextlib import AbstractContextManager

from rayprivacy.core.config import PathKind, path_values
from rayprivacy.core.errors import ConfigError, renamed
from rayprivacy.core.private import digest_file
from rayprivacy.generation.settings import GRAPHED, ONNX, TRANSFORMERS
from rayprivacy.models.sources import MINILM, found_here, require_positions, shape_of
from rayprivacy.questions.settings import JudgeConfig, QuestionsKeys, RetrieverConfig

ASKER, JUDGE, RETRIEVER = "questions.asker.base", "questions.judge.encoder", "questions.retriever.base"
STATIC = "static"  # of a retriever: token vectors of the packaged sentence model
_POSITIONS = "max_position_embeddings"


def named(key: str) -> AbstractContextManager[None]:
    """Errors on a base name its key, and not that of a run's base model."""
    return renamed({"model.base": key}, ConfigError)


def check_bases(keys: QuestionsKeys) -> None:
    """Refuse models that are not here, and encoders that say themselves that they do not serve."""
    judge, retriever = keys.questions.judge or JudgeConfig(), keys.questions.retriever or RetrieverConfig()
    for key, base in path_values(keys, PathKind.PUBLIC_MODEL):
        with named(key):
            shape = shape_of(MINILM if base == STATIC else base)
            kind = shape.get("model_type")
            if key == ASKER and shape and kind != GRAPHED and keys.questions.asker.engine == ONNX:
                raise ConfigError(
                    f"questions.asker.engine is '{ONNX}', which samples from models of type '{GRAPHED}' alone, and"
                    f" model.base is one of type {kind!r}: set the engine to '{TRANSFORMERS}'."
                )
            if shape and key == JUDGE:
                require_bert(base, kind, shape.get(_POSITIONS), judge.max_tokens)
            if key == RETRIEVER and base != STATIC:
                require_positions(shape.get(_POSITIONS), retriever.max_tokens)


def require_bert(base: str, kind: object, positions: int | None, tokens: int) -> None:
    """Refuse an encoder of a judge that is no BERT, or reads fewer tokens than it is to read."""
    if kind != "bert" or (positions is not None and positions < tokens):
        raise ConfigError(
            f"model.base is {base!r}, and must be a BERT with positions for {tokens} tokens, judge.max_tokens: name"
            " another."
        )


def digests_of(base: str) -> dict[str, str]:
    """Digests of the files of a base that is a folder here, by name; of any other its name is all that is known."""
    place = found_here(base)
    files = sorted(place.iterdir()) if place is not None and place.is_dir() else []
    return {path.name: digest_file(path) for path in files if path.is_file()}
