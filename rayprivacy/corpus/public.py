"""Public text: prompts that generation starts from, corpora to train on for nothing, and where sentences end.

Prompts must be PUBLIC: written by hand or taken from public text, never prefixes of the private corpus. A prefix copied
from a user's message is published without noise as soon as a synthetic text starts with it.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import islice

import pyarrow as pa

from rayprivacy.core.errors import ConfigError, CorpusError, renamed
from rayprivacy.core.written import read_text
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source, read_share, sealed
from rayprivacy.corpus.users import canonical_labels, stripped_texts


def load_prompts(path: str | None = None) -> list[str]:
    """Read prompts, one a line in UTF-8; empty lines are skipped. Without a path: the packaged openers.

    >>> load_prompts()[0]
    'Oh I see'
    """
    if path is None:
        return _lines(files("rayprivacy.corpus").joinpath("openers.txt").read_text("utf-8"))
    prompts = _lines(read_text(path, "the prompts file", "give UTF-8 text"))
    if not prompts:
        raise ConfigError(f"the prompts file {path} has no prompt: write one a line.")
    return prompts


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def public_texts(source: str, column: str, block: str) -> list[str]:
    """Texts without surrounding white space, in the order of the source; errors name keys of the recipe's `block`."""
    return [text for (text,) in _read(CorpusConfig(source=source, text=column, user=None), block, "")]


def public_rows(source: str, column: str, label: str, block: str, label_key: str) -> list[tuple[str, str]]:
    """Texts, each with the value of another column, in the order of the source, but for rows that lack one."""
    found = _read(CorpusConfig(source=source, text=column, user=None, labels=(label,)), block, label_key)
    return [(text, value) for text, value in found]


def _read(config: CorpusConfig, block: str, label_key: str) -> list[tuple[str, ...]]:
    """Text and labels of the rows that have all of them."""
    named = {"source": f"{block}.source", "text": f"{block}.text", "labels": label_key}
    columns = [column.to_pylist() for column in public_table(config, named)]
    return [row for row in zip(*columns, strict=True) if all(row)]


def public_table(config: CorpusConfig, named: Mapping[str, str]) -> pa.Table:
    """Text and labels of a public source, in its order, stripped; null where there is none. Errors call the keys of a
    corpus as `named` has it.
    """
    with renamed({f"corpus.{key}": own for key, own in named.items()}, CorpusError):
        return _table(config)


@sealed("reading public text")
def _table(config: CorpusConfig) -> pa.Table:
    schema = pa.schema([(name, pa.large_string()) for name in ("text", *config.labels)])
    pieces = read_share(config, 0, 1, check_source(config))
    return pa.concat_tables([schema.empty_table(), *(_stripped(piece, schema) for piece in pieces)])


def _stripped(piece: pa.Table, schema: pa.Schema) -> pa.Table:
    labels = {name: canonical_labels(piece[name], name) for name in schema.names[1:]}
    columns = {"text": piece["text"], **labels}
    return pa.table({name: stripped_texts(column) for name, column in columns.items()}, schema=schema)


_CLOSING, _OPENING = "\"'\u201d\u2019)]", "\"'\u201c\u2018(["
_WIDE = "\u3002\uff01\uff1f"  # marks that no space follows
_NEAR = 64  # characters that are looked at on each side, so that long texts take no longer for each of their marks
_MARK = re.compile(f"[.!?\u2026]+[{re.escape(_CLOSING)}]*|[{_WIDE}]")


def first_sentences(text: str, count: int) -> str | None:
    """The first sentences of a text, or None where fewer of them end in it: a rule of thumb, for public text alone.

    A full stop after a capitalised word of at most three letters is an abbreviation's. Chinese and Japanese need no
    space.

    >>> first_sentences("I thank Mr. Smith. It is late", 1)
    'I thank Mr. Smith.'
    >>> first_sentences("I thank Mr. Smith. It is late", 2)
    """
    end = next(islice(sentence_ends(text), count - 1, None), None)
    return None if end is None else text[:end]


def sentence_ends(text: str) -> Iterator[int]:
    """Where sentences end, by the same rule; a rest that ends without a mark has no end.

    >>> [*sentence_ends("It is late. I go"), *sentence_ends("no mark")]
    [11]
    """
    for mark in _MARK.finditer(text):
        before, rest = text[max(mark.start() - _NEAR, 0) : mark.start()], text[mark.end() : mark.end() + _NEAR]
        if _ends_sentence(before, mark[0], rest):
            yield mark.end()


def _ends_sentence(before: str, mark: str, rest: str) -> bool:
    following = rest.lstrip()
    if mark in _WIDE or not following:
        return True
    first, word = following.lstrip(_OPENING)[:1], before.split()[-1] if before.strip() else ""
    is_short = mark == "." and word[:1].isupper() and len(word) <= 3  # Mr, Dr, St, U.S.
    return rest[0].isspace() and first.isalpha() and not first.islower() and not is_short
