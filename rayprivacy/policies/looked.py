"""What a policy hides in a corpus, for those whose text it is to look at before a run: all of it is private text."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.layout import joined
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import SEAL, check_source, read_share, shares_of
from rayprivacy.corpus.users import clean
from rayprivacy.policies.policy import Policy


@dataclass(frozen=True)
class Looked:
    """A text, whole, and where what is hidden of it starts and ends."""

    text: str = field(repr=False)
    spans: list[tuple[int, int]]

    def parts(self) -> Iterator[tuple[str, bool]]:
        """The text in pieces, each with whether it is hidden."""
        end = 0
        for start, stop in self.spans:
            yield self.text[end:start], False
            yield self.text[start:stop], True
            end = stop
        yield self.text[end:], False


@dataclass
class Counts:
    """How much of some texts is hidden, and what, by how often."""

    texts: int = 0
    with_hidden: int = 0
    words: int = 0
    hidden_words: int = 0
    runs: Counter[str] = field(default_factory=Counter, repr=False)

    def add(self, looked: Looked) -> None:
        """Count one more text."""
        runs = [looked.text[start:stop].casefold().split() for start, stop in looked.spans]
        self.texts += 1
        self.with_hidden += bool(runs)
        self.words += len(looked.text.split())
        self.hidden_words += sum(map(len, runs))
        self.runs.update(" ".join(run) for run in runs)


def look(config: CorpusConfig, policy: Policy) -> Iterator[Looked]:
    """The texts of a corpus, as a run reads them before it bounds and cuts them.

    Raises:
        CorpusError: the source cannot be read, or has no text.
    """
    stamp = check_source(config)
    found = False
    for each in SEAL.each("looking at what the policy hides", _looked(config, policy, stamp)):
        found = True
        yield each
    if not found:
        raise CorpusError("the corpus has no usable text: check corpus.text and corpus.user.")


def _looked(config: CorpusConfig, policy: Policy, stamp: str) -> Iterator[Looked]:
    for rows in _documents(config, stamp):
        for row in rows.to_pylist():
            yield Looked(row["text"], policy.spans(row))


def _documents(config: CorpusConfig, stamp: str) -> Iterator[pa.Table]:
    shares = shares_of(config)
    pieces = (clean(piece, None)[0] for share in range(shares) for piece in read_share(config, share, shares, stamp))
    if config.join is None:
        yield from pieces
    elif turns := list(pieces):
        rows = pa.concat_tables(turns)
        yield joined(rows.group_by(rows.column_names, use_threads=False).aggregate([]), config.join, None)
