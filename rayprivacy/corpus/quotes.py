"""Quotes of a CSV file, looked at while the file is read: where one is open, rows of other users would be text of one.

Arrow takes what stands behind an open quote as text, also to the end of the file, and also up to a quote that was to
open another field. Programs write a field either without quotes, or in quotes with those inside doubled. So a field
that begins with a quote must end with one, with a comma, a line's end or the end of the file behind it; line breaks
inside are text. A field that begins with anything else may hold quotes, as Arrow has it.
"""

import io
import re
from codecs import BOM_UTF8

import pyarrow as pa

from rayprivacy.core.errors import CorpusError

_WELL = re.compile(rb'(?:[^"]++|(?<![,\r\n])"|"(?:[^"]++|"")*+"(?=[,\r\n]))*+')  # up to a field that is not whole here
_QUOTE, _SEPARATORS = ord('"'), frozenset(b",\r\n")


class QuotesRead(io.RawIOBase):
    """A CSV file that is read from its beginning to its end; CorpusError where a quote is not closed as it should."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._last = b"\n"  # the byte before: a field begins here
        self._inside = self._after = False  # a field in quotes, and behind a quote that may be its last
        self._begun = False

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the file."""
        data: bytes = self._stream.read(size) if size >= 0 else self._stream.read()
        self._look(data if self._begun else data.removeprefix(BOM_UTF8))
        self._begun = True
        if not data and size and self._inside and not self._after:
            raise CorpusError(
                "corpus.source has a CSV file that ends inside of quotes: close them, and double the quotes inside of"
                " quoted texts."
            )
        return data

    def _look(self, fresh: bytes) -> None:
        data, at = self._last + fresh, 1
        self._last = data[-1:]
        while at < len(data):
            if not self._inside:
                found = _WELL.match(data, at)
                at = found.end() + 1 if found else at
                self._inside = at <= len(data)
            elif not self._after:
                at = data.find(b'"', at) + 1 or len(data)
                self._after = data[at - 1] == _QUOTE
            else:
                at += self._close(data[at])

    def _close(self, behind: int) -> int:
        """What a byte says of the quote before it: another one is text, and is read with it; else the field ends."""
        self._after = False
        if behind == _QUOTE:
            return 1
        if behind not in _SEPARATORS:
            raise CorpusError(
                "corpus.source has a CSV file with text behind a closing quote, as where an earlier one was left open:"
                " close it, and double the quotes inside of quoted texts."
            )
        self._inside = False
        return 0
