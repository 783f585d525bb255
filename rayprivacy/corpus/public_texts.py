"""The texts of a public corpus, on which a model is trained for nothing. The private corpus is never read here.

It is read with the readers of the private corpus, in this process and into memory.
"""

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


@sealed("reading public text")
def _texts(config: CorpusConfig) -> list[str]:
    pieces = read_share(config, 0, 1, check_source(config))
    return [text for piece in pieces for text in stripped_texts(piece["text"]).drop_null().to_pylist()]
