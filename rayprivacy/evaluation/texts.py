"""Texts to be compared, with their users and labels: how they are read, and which are compared with which.

The files are read with the corpus layer's readers, in this process: an evaluation is one table, not a distributed job.
Texts are cut to `MAX_CHARS` characters, as a corpus is by default. Users matter in two places: the halves of the real
corpus have no user in common, and intervals resample users (see `figures`).

Real text is split in two halves without a common user. Synthetic text is compared with the first half, and so is the
second half: equally many texts of real people whom the first half does not know. That is the best that a model can hope
for, and the reference of every figure. Distances of distributions depend on sample sizes, so both sides are equally
large.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.sealing import Seal
from rayprivacy.corpus.listing import choice, columns_of, filesystem_of, locate
from rayprivacy.corpus.readers import read_pieces
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.users import canonical_strings, canonical_users, stripped_texts
from rayprivacy.evaluation.settings import EvaluationConfig

MAX_CHARS = 2000
LEAST_TEXTS = 20
LEAST_OF_HALF = 10
_OPTIONS = {"corpus.text": "--text", "corpus.user": "--user", "corpus.labels": "--label"}
PARSE = "parse"  # the column of trees that two-stage generation writes
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """Texts of one file; printing one shows sizes only.

    Attributes:
        texts: the texts, none of them empty.
        users: who wrote each, numbered from 0.
        labels: the label of each, if there is a label column; None where a text has none.
        trees: the parse tree of each as text, if there is a column of them.
        authored: whether users were named; if not, each text has a user of its own.
        left_out: rows without text.
        cut: texts that were longer than `MAX_CHARS`.
    """

    texts: list[str] = field(repr=False)
    users: Indexes = field(repr=False)
    labels: list[str | None] | None = field(default=None, repr=False)
    trees: list[str | None] | None = field(default=None, repr=False)
    authored: bool = False
    left_out: int = 0
    cut: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Indexes) -> "Texts":
        """The texts at these places."""
        labels, trees = (None if each is None else [each[row] for row in rows] for each in (self.labels, self.trees))
        users = np.unique(self.users[rows], return_inverse=True)[1]
        return Texts([self.texts[row] for row in rows], users, labels, trees, self.authored)

    def summary(self) -> dict[str, int | bool]:
        """Sizes: private where the texts are."""
        return {
            "texts": len(self),
            "users": len(np.unique(self.users)),
            "users_named": self.authored,
            "left_out_without_text": self.left_out,
            "cut_to_max_chars": self.cut,
        }


def plain(texts: list[str], users: list[str] | None = None, labels: list[str | None] | None = None) -> Texts:
    """Texts from lists, for callers that have them in memory.

    >>> plain(["a b", "c"], ["ann", "ann"])
    Texts(authored=True, left_out=0, cut=0)
    """
    codes = np.arange(len(texts)) if users is None else np.unique(np.array(users, dtype=object), return_inverse=True)[1]
    return Texts(list(texts), codes, labels, authored=users is not None)


def texts_of(table: pa.Table, columns: Mapping[str, str]) -> Texts:
    """Texts of a table, treated as those of a file: stripped, cut to `MAX_CHARS`, rows without text left out.

    Args:
        table: the rows.
        columns: which column is the `text`, and where there are such, the `user` and the `label`.
    """
    return _texts(_cleaned(table, dict(columns)))


def sample(count: int, most: int, seed: int) -> Indexes:
    """At most `most` places of `count`, drawn without replacement by a public seed, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng([seed, count, most]).choice(count, most, replace=False))


def halves(users: Indexes, seed: int) -> tuple[Indexes, Indexes] | None:
    """Split texts in two so that no user is in both: shuffled users fill the first half, then the second.

    Returns:
        The places of both, or None if one would have fewer than `LEAST_OF_HALF` texts: a few users wrote nearly all.
    """
    counts = np.bincount(users)
    order = np.random.default_rng([seed, len(users), 2]).permutation(len(counts))
    # A user goes to the first half if the middle of their texts lies in it: the cut that is nearest to even.
    before = np.cumsum(counts[order]) - counts[order] / 2
    first = np.isin(users, order[before < len(users) / 2])
    parts = np.flatnonzero(first), np.flatnonzero(~first)
    return parts if min(map(len, parts)) >= LEAST_OF_HALF else None


def read_texts(source: str, option: str, config: EvaluationConfig) -> Texts:
    """Read a Parquet, JSONL or CSV file, a directory of them, or the URI of one.

    Args:
        source: where it is.
        option: how errors name it, e.g. `--real`.
        config: the columns; a label column must be there, a user column in real text only.

    Raises:
        CorpusError: the file or a column is missing, it cannot be read as UTF-8 text, or it has too few texts.
    """
    seal = Seal(CorpusError, f"check that {option} is well-formed Parquet, JSONL or CSV, in UTF-8")
    with _named(option):
        texts = seal.around(f"reading {option}")(_read)(source, option, config)
    if len(texts) < LEAST_TEXTS:
        raise CorpusError(f"{option} has {len(texts)} texts that are not empty: give at least {LEAST_TEXTS}.")
    return texts


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Errors of the corpus layer name keys of a recipe: here they name the options of the command."""
    try:
        yield
    except CorpusError as error:
        message = str(error).replace("corpus.source", option)
        for key, name in _OPTIONS.items():
            message = message.replace(key, name)
        raise CorpusError(message) from None


def _read(source: str, option: str, config: EvaluationConfig) -> Texts:
    where = CorpusConfig.parse({"source": source})
    files = locate(where)
    wanted = _columns(columns_of(where, files), files.kind, option, config)
    filesystem, _ = filesystem_of(source)
    pieces = []
    for path in files.paths:
        with filesystem.open_input_file(path) as stream:
            pieces += [_cleaned(piece, wanted) for piece in read_pieces(stream, files.kind, list(set(wanted.values())))]
    if not pieces:
        return Texts([], np.arange(0))
    return _texts(pa.concat_tables(pieces))


def _columns(names: list[str], kind: str, option: str, config: EvaluationConfig) -> dict[str, str]:
    """Which column of the file holds what; synthetic text has no users to name."""
    wanted = {"text": config.text}
    if config.label is not None:
        wanted["label"] = config.label
    if config.tree is not None and option != "--holdout":  # nothing is compared with its trees
        written = option == "--synthetic" and config.tree not in names and PARSE in names
        wanted["tree"] = PARSE if written else config.tree
    if config.user is not None and (option != "--synthetic" or config.user in names):
        wanted["user"] = config.user
    elif config.user is None and "user" in names and "user" not in wanted.values():
        wanted["user"] = "user"
    for role, name in wanted.items():
        if name not in names:
            raise CorpusError(f"--{role} is '{name}', which is not a column of {option}: {choice(names, kind)}.")
    return wanted


def _cleaned(piece: pa.Table, wanted: dict[str, str]) -> pa.Table:
    piece.validate(full=True)  # Parquet may carry bytes that are no UTF-8
    texts = stripped_texts(piece[wanted["text"]])
    columns = {
        "text": pc.utf8_rtrim_whitespace(pc.utf8_slice_codeunits(texts, 0, MAX_CHARS)),
        "long": pc.fill_null(pc.greater(pc.utf8_length(texts), MAX_CHARS), False),
        "user": canonical_users(piece[wanted["user"]]) if "user" in wanted else _nothing(len(piece)),
        "label": canonical_strings(piece[wanted["label"]], "label") if "label" in wanted else _nothing(len(piece)),
        "tree": canonical_strings(piece[wanted["tree"]], "tree") if "tree" in wanted else _nothing(len(piece)),
        "authored": pa.array(["user" in wanted] * len(piece)),
        "labelled": pa.array(["label" in wanted] * len(piece)),
        "parsed": pa.array(["tree" in wanted] * len(piece)),
    }
    return pa.table(columns)


def _nothing(rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(rows, pa.string())])


def _texts(table: pa.Table) -> Texts:
    kept = table.filter(pc.is_valid(table["text"]))
    authored, labelled, parsed = (pc.any(kept[name]).as_py() for name in ("authored", "labelled", "parsed"))
    return Texts(
        kept["text"].to_pylist(),
        _codes(kept["user"].to_pylist()),
        kept["label"].to_pylist() if labelled else None,
        kept["tree"].to_pylist() if parsed else None,
        bool(authored),
        len(table) - len(kept),
        pc.sum(kept["long"]).as_py() or 0,
    )


def _codes(names: list[str | None]) -> Indexes:
    """Users numbered; a text without a user is its own."""
    known: dict[str | int, int] = {}
    return np.array([known.setdefault(row if name is None else name, len(known)) for row, name in enumerate(names)])


@dataclass(frozen=True)
class Drawn:
    """Texts that are compared, and which of them play which part.

    Attributes:
        real, synthetic, holdout: the drawn texts.
        target: places in `real` that synthetic text is compared with.
        compared: places in `synthetic`.
        reference: places in `real` of the other users, if there are any.
    """

    real: Texts
    synthetic: Texts
    holdout: Texts | None
    target: Indexes
    compared: Indexes
    reference: Indexes | None


def draw(real: Texts, synthetic: Texts, holdout: Texts | None, config: EvaluationConfig) -> Drawn:
    """Draw at most `max_texts` of each corpus, and give them their parts."""
    ours = real.take(sample(len(real), config.max_texts, config.seed))
    theirs = synthetic.take(sample(len(synthetic), config.max_texts, config.seed + 1))
    held = None if holdout is None else holdout.take(sample(len(holdout), config.max_texts, config.seed + 2))
    parts = halves(ours.users, config.seed)
    target, reference = parts or (np.arange(len(ours)), None)
    size = min(len(theirs), len(target if reference is None else reference))
    if reference is not None:
        reference = reference[sample(len(reference), size, config.seed)]
    return Drawn(ours, theirs, held, target, sample(len(theirs), size, config.seed), reference)
