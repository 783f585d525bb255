"""The texts of a public corpus, on which a model is trained for nothing. The private corpus is never read here.

It is read with the readers of the private corpus, in this process and into memory.
"""

import pyarrow as pa

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.corpus.sealing import sealed
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source, read_share
from rayprivacy.corpus.users import stripped_texts


def public_texts(source: str, column: str, block: str) -> list[str]:
    """Texts without surrounding white space, in the order of the source; rows without text are left out.

    Args:
        source: as `corpus.source` of a recipe.
        column: that holds the text.
        block: of the recipe, whose keys `source` and `text` errors name.

    Raises:
        ConfigError: the source or the column is missing, or cannot be read.
    """
    try:
        return _texts(CorpusConfig(source=source, text=column, user=None))
    except CorpusError as error:
        message = str(error).replace("corpus.source", f"{block}.source").replace("corpus.text", f"{block}.text")
    raise ConfigError(message)


def public_rows(source: str, column: str, label: str, block: str, label_key: str) -> list[tuple[str, str]]:
    """Texts, each with the value of another column, in the order of the source; rows that lack one are left out.

    Args:
        source: as `corpus.source` of a recipe.
        column: that holds the text.
        label: the other column.
        block: of the recipe, whose keys `source` and `text` errors name.
        label_key: of the recipe, that names the other column.

    Raises:
        ConfigError: the source or a column is missing, or cannot be read.
    """
    try:
        return _rows(CorpusConfig(source=source, text=column, user=None, labels=(label,)), label)
    except CorpusError as error:
        message = str(error).replace("corpus.source", f"{block}.source").replace("corpus.text", f"{block}.text")
    raise ConfigError(message.replace("corpus.labels", label_key))


@sealed("reading public text")
def _rows(config: CorpusConfig, label: str) -> list[tuple[str, str]]:
    pieces = list(read_share(config, 0, 1, check_source(config)))
    columns = [[str(value) for piece in pieces for value in _stripped(piece[name])] for name in ("text", label)]
    return [(text, value) for text, value in zip(*columns, strict=True) if text and value]


def _stripped(column: pa.ChunkedArray) -> list[str]:
    return [value or "" for value in stripped_texts(column).to_pylist()]


@sealed("reading public text")
def _texts(config: CorpusConfig) -> list[str]:
    pieces = read_share(config, 0, 1, check_source(config))
    return [text for piece in pieces for text in stripped_texts(piece["text"]).drop_null().to_pylist()]
