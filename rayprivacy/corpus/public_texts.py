"""The texts of a public corpus, on which a model is trained for nothing. The private corpus is never read here.

It is read with the readers of the private corpus, in this process and into memory.
"""

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.corpus.sealing import sealed
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source, read_share
from rayprivacy.corpus.users import stripped_texts


def public_texts(source: str, column: str, block: str) -> list[str]:
    """Texts without surrounding white space, in the order of the source; errors name keys of the recipe's `block`."""
    return [text for (text,) in _read(CorpusConfig(source=source, text=column, user=None), block, "")]


def public_rows(source: str, column: str, label: str, block: str, label_key: str) -> list[tuple[str, str]]:
    """Texts, each with the value of another column, in the order of the source, but for rows that lack one."""
    found = _read(CorpusConfig(source=source, text=column, user=None, labels=(label,)), block, label_key)
    return [(text, value) for text, value in found]


def _read(config: CorpusConfig, block: str, label_key: str) -> list[tuple[str, ...]]:
    try:
        return _rows(config)
    except CorpusError as error:
        message = str(error)
    for name, own in (("source", f"{block}.source"), ("text", f"{block}.text"), ("labels", label_key)):
        message = message.replace(f"corpus.{name}", own)
    raise ConfigError(message)


@sealed("reading public text")
def _rows(config: CorpusConfig) -> list[tuple[str, ...]]:
    """Text and labels of the rows that have all of them."""
    pieces = list(read_share(config, 0, 1, check_source(config)))
    names = ("text", *config.labels)
    columns = [[text for piece in pieces for text in stripped_texts(piece[name]).to_pylist()] for name in names]
    return [row for row in zip(*columns, strict=True) if all(row)]
