"""Texts to be compared, with their users and labels: how they are read, and which are compared with which.

Real text is split in two halves without a common user. Synthetic text is compared with the first half, and so is the
second half: equally many texts of real people whom the first half does not know. That is the best that a model can hope
for, and the reference of every figure. Distances of distributions depend on sample sizes, so both sides are equally
large.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import CorpusError, renamed
from rayprivacy.core.private import Seal
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import SourceFiles, choice, columns_of, filesystem_of, left_out, locate, read_pieces
from rayprivacy.corpus.users import canonical_labels, canonical_users, stripped_texts
from rayprivacy.evaluation.settings import EvaluationConfig

MAX_CHARS = 2000
LEAST_TEXTS = 20
_OPTIONS = {"corpus.text": "--text", "corpus.user": "--user", "corpus.labels": "--label"}
_MARKS = {"authored": "user", "labelled": "label", "parsed": "tree"}  # columns that say whether there is such a one
_TEXT, _PARSE = "text", "parse"  # the columns of text, and of trees of two-stage generation, that a run writes
Indexes = npt.NDArray[np.int64]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Texts:
    """Texts of one file, none of them empty; printing one shows sizes only.

    `users` are numbered from 0; where none were named (`authored`), each text has one of its own. Labels and trees are
    None where a text has none. `whole` (texts and users), `left_out` (rows without text) and `cut` (longer than
    `MAX_CHARS`) are of the file, of which this may be a sample.
    """

    texts: list[str] = field(repr=False)
    users: Indexes = field(repr=False)
    labels: list[str | None] | None = field(default=None, repr=False)
    trees: list[str | None] | None = field(default=None, repr=False)
    authored: bool = False
    left_out: int = 0
    cut: int = 0
    whole: tuple[int, int] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Indexes) -> "Texts":
        """The texts at these places."""
        labels, trees = (None if each is None else [each[row] for row in rows] for each in (self.labels, self.trees))
        users = np.unique(self.users[rows], return_inverse=True)[1]
        return Texts([self.texts[row] for row in rows], users, labels, trees, self.authored)

    def summary(self) -> dict[str, int | bool]:
        """Sizes: private where the texts are."""
        texts, users = self.whole or (len(self), len(np.unique(self.users)))
        return {
            "texts": texts,
            "users": users,
            "users_named": self.authored,
            "left_out_without_text": self.left_out,
            "cut_to_max_chars": self.cut,
        }


def plain(texts: list[str], users: list[str] | None = None, labels: list[str | None] | None = None) -> Texts:
    """Texts from lists, for callers that have them in memory."""
    codes = np.arange(len(texts)) if users is None else np.unique(np.array(users, dtype=object), return_inverse=True)[1]
    return Texts(list(texts), codes, labels, authored=users is not None)


def texts_of(table: pa.Table, columns: Mapping[str, str]) -> Texts:
    """Texts of a table, as of a file: stripped, cut, without empty ones; `columns` names text, user and label."""
    return _texts(_cleaned(table, dict(columns)))


def sample(count: int, most: int, seed: int) -> Indexes:
    """At most `most` places of `count`, drawn without replacement by a public seed, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng([seed, count, most]).choice(count, most, replace=False))


def halves(users: Indexes, seed: int) -> tuple[Indexes, Indexes] | None:
    """Split texts so that no user is in both halves, by shuffled users; None where a few users wrote nearly all."""
    counts = np.bincount(users)
    order = np.random.default_rng([seed, len(users), 2]).permutation(len(counts))
    # A user goes to the first half if the middle of their texts lies in it: the cut that is nearest to even.
    before = np.cumsum(counts[order]) - counts[order] / 2
    first = np.isin(users, order[before < len(users) / 2])
    parts = np.flatnonzero(first), np.flatnonzero(~first)
    return parts if min(map(len, parts)) >= 10 else None


def read_texts(source: str, option: str, config: EvaluationConfig) -> Texts:
    """Read a Parquet, JSONL or CSV file, a directory of them, or the URI of one, piece by piece: at most `max_texts`
    texts, drawn by a public seed. Errors name `option`, e.g. `--real`. A user column must be in real text only.
    """
    with _named(option):
        texts = _sealed(option, _read)(source, option, config)
    if len(texts) < LEAST_TEXTS:
        raise CorpusError(f"{option} has {len(texts)} texts that are not empty: give at least {LEAST_TEXTS}.")
    return texts


def files_left_out(source: str, option: str) -> str:
    """A sentence on the files of a folder that `read_texts` does not read; empty where there are none."""
    with _named(option):
        return left_out(CorpusConfig.parse({"source": source})).replace("corpus.source", option)


def text_blocks(source: str, option: str, config: EvaluationConfig) -> Iterator[list[str]]:
    """All texts of what `read_texts` has read, in blocks of bounded size."""
    with _named(option):
        pieces = _pieces(source, locate(CorpusConfig.parse({"source": source})), {"text": config.text})
        read = _sealed(option, lambda: next(pieces, None))
        while (piece := read()) is not None:
            yield _kept(piece)["text"].to_pylist()


def _sealed(option: str, read: Callable[P, R]) -> Callable[P, R]:
    """A parser quotes the row that it fails on."""
    remedy = f"check that {option} is well-formed Parquet, JSONL or CSV, in UTF-8"
    return Seal(CorpusError, remedy).around(f"reading {option}")(read)


def _named(option: str) -> AbstractContextManager[None]:
    """Errors of the corpus layer name keys of a recipe: here they name the options of the command."""
    return renamed({"corpus.source": option, **_OPTIONS}, CorpusError, CorpusError)


def _read(source: str, option: str, config: EvaluationConfig) -> Texts:
    """A sample by random numbers that differ between files, lest a text and its sanitised copy be drawn together."""
    where = CorpusConfig.parse({"source": source})
    files = locate(where)
    wanted = _columns(columns_of(where, files), files.kind, option, config)
    rng = np.random.default_rng([config.seed, config.max_texts, *option.encode()])
    drawn, numbers, users = list[pa.Table](), np.empty(0), set[str]()
    texts = left_out = cut = unnamed = 0
    for piece in _pieces(source, files, wanted):
        kept = _kept(piece)
        texts += len(kept)
        left_out += len(piece) - len(kept)
        cut += pc.sum(kept["long"]).as_py() or 0
        unnamed += kept["user"].null_count
        users.update(pc.unique(kept["user"]).drop_null().to_pylist())
        table, numbers = pa.concat_tables([*drawn, kept]), np.append(numbers, rng.random(len(kept)))
        if len(table) > config.max_texts:
            least = np.sort(np.argpartition(numbers, config.max_texts)[: config.max_texts])
            table, numbers = table.take(least), numbers[least]
        drawn = [table]
    if not drawn:
        return Texts([], np.arange(0))
    found = _texts(drawn[0])
    whole = (texts, len(users) + unnamed) if texts > len(found) else None
    return replace(found, left_out=left_out, cut=cut, whole=whole)


def _pieces(source: str, files: SourceFiles, wanted: dict[str, str]) -> Iterator[pa.Table]:
    """The rows, cleaned, a few at a time."""
    filesystem, _ = filesystem_of(source)
    for path in files.paths:
        with filesystem.open_input_file(path) as stream:
            for piece in read_pieces(stream, files.kind, list(set(wanted.values()))):
                yield _cleaned(piece, wanted)


def _columns(names: list[str], kind: str, option: str, config: EvaluationConfig) -> dict[str, str]:
    """Which column of the file holds what; synthetic text has no users to name."""
    of_run = option == "--synthetic" and config.text not in names and _TEXT in names
    wanted = {"text": _TEXT if of_run else config.text}
    if config.label is not None:
        wanted["label"] = config.label
    if config.tree is not None and option != "--holdout":  # nothing is compared with its trees
        written = option == "--synthetic" and config.tree not in names and _PARSE in names
        wanted["tree"] = _PARSE if written else config.tree
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
    strings = {role: canonical_labels(piece[wanted[role]], role) for role in ("label", "tree") if role in wanted}
    users = {"user": canonical_users(piece[wanted["user"]])} if "user" in wanted else {}
    nothing = pa.chunked_array([pa.nulls(len(piece), pa.string())])
    marks = {mark: pa.array([role in wanted] * len(piece)) for mark, role in _MARKS.items()}
    columns = {
        "text": pc.utf8_rtrim_whitespace(pc.utf8_slice_codeunits(texts, 0, MAX_CHARS)),
        "long": pc.fill_null(pc.greater(pc.utf8_length(texts), MAX_CHARS), False),
        **dict.fromkeys(_MARKS.values(), nothing),
    }
    return pa.table(columns | users | strings | marks)


def _kept(table: pa.Table) -> pa.Table:
    """The rows with text."""
    return table.filter(pc.is_valid(table["text"]))


def _texts(table: pa.Table) -> Texts:
    kept = _kept(table)
    authored, labelled, parsed = (pc.any(kept[mark]).as_py() for mark in _MARKS)
    known: dict[str | int, int] = {}
    named = enumerate(kept["user"].to_pylist())  # a text without a user is its own
    users = np.array([known.setdefault(row if name is None else name, len(known)) for row, name in named])
    return Texts(
        kept["text"].to_pylist(),
        users,
        kept["label"].to_pylist() if labelled else None,
        kept["tree"].to_pylist() if parsed else None,
        bool(authored),
        len(table) - len(kept),
        pc.sum(kept["long"]).as_py() or 0,
    )


@dataclass(frozen=True)
class DrawnTexts:
    """Texts that are compared: `target` are places in `real` that those at `compared` in `synthetic` are set beside,
    and `reference` places in `real` of other users, if there are any.
    """

    real: Texts
    synthetic: Texts
    holdout: Texts | None
    target: Indexes
    compared: Indexes
    reference: Indexes | None


def draw(real: Texts, synthetic: Texts, holdout: Texts | None, config: EvaluationConfig) -> DrawnTexts:
    """Draw at most `max_texts` of each corpus, and give them their parts."""
    ours = real.take(sample(len(real), config.max_texts, config.seed))
    theirs = synthetic.take(sample(len(synthetic), config.max_texts, config.seed + 1))
    held = None if holdout is None else holdout.take(sample(len(holdout), config.max_texts, config.seed + 2))
    parts = halves(ours.users, config.seed)
    target, reference = parts or (np.arange(len(ours)), None)
    size = min(len(theirs), len(target if reference is None else reference))
    if reference is not None:
        reference = reference[sample(len(reference), size, config.seed)]
    return DrawnTexts(ours, theirs, held, target, sample(len(theirs), size, config.seed), reference)
