"""Quotes of a CSV file, looked at while the file is read: where one is open, rows of other users would be text of one.

Arrow takes what stands behind an open quote as text, also to the end of the file, and also up to a quote that was to
open another field. Programs write a field either without quotes, or in quotes with those inside doubled. So a field
that begins with a quote must end with one, with a comma, a line's end or the end of the file behind it; line breaks
inside are text. A field that begins with anything else may hold quotes, as Arrow has it.

A stray quote may be closed by chance where a field could end. That cannot be told from the field alone:

    ann,"hello                 an inch sign of cat closes the quote of ann, and bob is text of ann
    bob,good day
    cat,a screen of 19"

It shows in the file. Where quotes are not written to hold anything together, each line is a record by itself, with the
commas that the first line has, and none in front of a blank. Where a program writes them because it must, some line is
not: a sentence with a comma is enough. So refused is a file of which every line is a record by itself, and of which
quotes still make one field of several lines. A first line in quotes says that they are meant.
"""

import io
import re
from codecs import BOM_UTF8

import pyarrow as pa

from rayprivacy.core.errors import CorpusError

_WELL = re.compile(rb'(?:[^"]++|(?<![,\r\n])"|"(?:[^"]++|"")*+"(?=[,\r\n]))*+')  # up to a field that is not whole here
_OPEN = re.compile(rb'(?:(?:"(?:[^"]|"")*+"|[^",][^,]*+|),)*+"(?:[^"]|"")*+')  # a line that ends inside of quotes
_LONGEST = 1 << 20  # bytes of a line; longer ones, and files whose lines end otherwise, are not looked at line by line
_QUOTE, _SEPARATORS = ord('"'), frozenset(b",\r\n")


class QuotesRead(io.RawIOBase):
    """A CSV file that is read from its beginning to its end; CorpusError where a quote is not closed as it should."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._last = b"\n"  # the byte before: a field begins here
        self._inside = self._after = False  # a field in quotes, and behind a quote that may be its last
        self._begun = False
        self._lines = _Lines()

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the file."""
        data: bytes = self._stream.read(size) if size >= 0 else self._stream.read()
        fresh = data if self._begun else data.removeprefix(BOM_UTF8)
        self._look(fresh)
        self._lines.look(fresh)
        self._begun = True
        if not data and size and self._inside and not self._after:
            raise CorpusError(
                "corpus.source has a CSV file that ends inside of quotes: close them, and double the quotes inside of"
                " quoted texts."
            )
        if not data and size and (line := self._lines.swallowed()):
            raise CorpusError(
                f"corpus.source has a CSV file of which every line is a record by itself, and a quote that line {line}"
                " opens and a later one closes makes one text of several records: double the quote and put the text in"
                " quotes; or if these lines are its text, put the names in the first line in quotes."
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


class _Lines:
    """The lines of a CSV file as they are without their quotes, while each of them is a record by itself."""

    def __init__(self) -> None:
        self._alone = True
        self._record: re.Pattern[bytes] | None = None  # of what a line is, by the first one
        self._commas = self._number = self._open = 0
        self._rest = b""

    def look(self, fresh: bytes) -> None:
        """Look at the next bytes."""
        if not self._alone:
            return
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        self._alone = len(self._rest) <= _LONGEST and all(self._is_alone(line.rstrip(b"\r")) for line in lines)

    def swallowed(self) -> int:
        """At the end of the file: the line that opens a quote behind which there are records, or 0."""
        self.look(b"\n")
        return self._open if self._alone else 0

    def _is_alone(self, line: bytes) -> bool:
        self._number += 1
        if self._record is None:
            self._commas = line.count(b",")
            self._record = re.compile(rb"[^,]*+(?:,(?![ \t])[^,]*+){%d}" % self._commas)
            return self._commas > 0 and _QUOTE not in line
        if self._commas == 1 and self._open == self._number - 1 and _QUOTE in line:
            self._open = 0  # one comma says too little
        elif not self._open and _QUOTE in line and _OPEN.fullmatch(line):
            self._open = self._number
        return not line or self._record.fullmatch(line) is not None
