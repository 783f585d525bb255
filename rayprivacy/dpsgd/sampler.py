"""Poisson sampling by keyed coins: which units take part in a step, and with which of their records.

Privacy amplification by sampling (Abadi et al., 2016; charged as PoissonSampled(q, Gaussian)) needs every unit to take
part in every step with probability q, by a coin of its own that stays secret. Here the coin of a unit is AES-256 of its
16-byte tag, under a key that is the PRF of (run, step): it depends on (secret, run, step, tag) and on nothing else. So

- an inserted unit changes no other unit's coins, and neither do the order of units or the rank that holds one;
- a step that runs again after a crash samples the same units, together with the same noise (dpsgd/noise.py);
- no batch has a fixed size: it may be empty, and an empty batch is a step like any other.

Where the noise of steps is correlated (`release.step_mechanism`), units fall into b groups, and step t is open to group
t mod b alone. The group of a unit is AES-256 of its tag under a key of the run, modulo b: it too is the unit's own, and
no two steps of a unit are less than b apart.

Distinct tags give distinct AES blocks, hence coins that are independent up to the gap between a pseudo-random
permutation and a function (n^2 / 2^129 for n units). The first 64 bits are below floor(q 2^64) with probability at most
q, exactly q up to 2^-64. The coins tell which units took part: they are as secret as the key file.

Texts may come in several *versions*, and a public function says which one a step reads. Coin and turn are drawn from
tag and step alone, so a version changes what is read of the rows, and neither which units take part nor which of their
rows are read.

A unit that takes part brings `most_records` of its documents at most. The other 64 bits, modulo the number n of its
documents, choose where to start, and the documents are taken cyclically from there: every document has the same chance,
up to a bias of n / 2^64. That bias concerns which of a user's own records are read, never the coin: user-level privacy
allows any function of one user's records, since their gradient is clipped once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import BLOCK_BYTES, Key, words_of
from rayprivacy.dpsgd.batches import Document

TAG_BYTES = BLOCK_BYTES


def unit_tag(key: Key, *parts: str | bytes | int) -> bytes:
    """A 16-byte keyed name of a unit, from whatever identifies it (a user id; a record's content)."""
    return bytes.fromhex(key.digest("dpsgd-unit", *parts))[:TAG_BYTES]


@dataclass(frozen=True, repr=False, eq=False)
class Unit:
    """One user, or one record."""

    tag: bytes  # its keyed name, 16 bytes (`unit_tag`)
    documents: tuple[Document, ...]  # its texts, at least one
    # the same texts as they are read in versions 1, 2, ..., where there are several
    later: tuple[tuple[Document, ...], ...] = ()
    part: int = 0  # number of the part file that holds it

    def __post_init__(self) -> None:
        if len(self.tag) != TAG_BYTES:
            raise ConfigError(f"the tag of a unit has {len(self.tag)} bytes: make it of {TAG_BYTES} with unit_tag().")
        if not self.documents:
            raise ConfigError("a unit has 0 documents: leave it out.")
        if any(len(version) != len(self.documents) for version in self.later):
            raise ConfigError(
                "the versions of a unit have different numbers of documents: give each row in each version."
            )

    def documents_in(self, version: int) -> tuple[Document, ...]:
        """Its texts as they are read in a version, from 0."""
        return (self.documents, *self.later)[version]


class TaggedUnits(Sequence[Unit]):
    """Units that are read when they are asked for, and whose tags are known without reading them."""

    @property
    def tags(self) -> bytes:
        """The tags of all units, one behind the other."""
        raise NotImplementedError


def first_version(step: int) -> int:
    """The version that a step reads where there is one only."""
    return 0


class PoissonSampler:
    """Samples the units of one rank, each with probability q at every step that is open to it.

    `run` names the coins, `most_records` bounds the documents of one unit that a step reads, and `groups` is b. Two
    units with the same tag are refused: they would share their coins.
    """

    def __init__(
        self,
        key: Key,
        run: str,
        q: float,
        units: Sequence[Unit],
        most_records: int,
        version_of: Callable[[int], int] = first_version,
        groups: int = 1,
    ) -> None:
        if not 0 < q <= 1:
            raise ConfigError(f"training.sampling_rate is {q}: give a number above 0 and at most 1, e.g. 0.05.")
        for name, number in (("max_records", most_records), ("bands", groups)):
            if number < 1:
                raise ConfigError(f"training.{name} is {number}: give a whole number of at least 1.")
        self._tags = units.tags if isinstance(units, TaggedUnits) else b"".join(unit.tag for unit in units)
        if len(np.unique(np.frombuffer(self._tags, f"V{TAG_BYTES}"))) < len(units):
            raise ReleaseError("two units have the same tag: put all documents of a user, or record, into one unit.")
        self._key, self._run, self._units, self._most = key, run, units, most_records
        self._version_of = version_of
        self._threshold = int(q * 2.0**64)  # exact: a product with a power of two, rounded down
        self._groups, self._group = groups, self._words("dpsgd-groups")[0] % np.uint64(groups)

    def sample(self, step: int) -> list[list[Document]]:
        """The documents of every unit that takes part in a step, in the order of the units; maybe none."""
        return [documents for _, _, documents in self._sample(step)]

    def micro_batches(self, step: int, of_part: int) -> list[list[list[Document]]]:
        """The same documents by micro-batch (`clipping`), `of_part` of each part file, without those that are empty."""
        if of_part < 1:
            raise ConfigError(f"a part file has {of_part} micro-batches: give a whole number of at least 1.")
        within = self._words("dpsgd-microbatches", step)[0] % np.uint64(of_part)
        groups: dict[tuple[int, int], list[list[Document]]] = {}
        for at, part, documents in self._sample(step):
            groups.setdefault((part, int(within[at])), []).append(documents)
        return [groups[number] for number in sorted(groups)]

    def _sample(self, step: int) -> list[tuple[int, int, list[Document]]]:
        coins, turns = self._words("dpsgd-coins", step)
        version = self._version_of(step)
        # A Python integer, which numpy compares exactly: for q = 1 it is 2^64 and has no place in 64 bits.
        open_to = self._group == step % self._groups
        taking_part = np.flatnonzero(open_to & (coins < self._threshold)).tolist()
        units = ((at, self._units[at]) for at in taking_part)  # read from disk, maybe: once each
        return [(at, unit.part, self._turn(unit.documents_in(version), int(turns[at]))) for at, unit in units]

    def _words(self, use: str, *step: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Two uniform 64-bit numbers for every unit, [units] each: its coin, say, and where its turn starts."""
        words = words_of(bytes.fromhex(self._key.digest(use, self._run, *step)), self._tags)
        return words[:, 0], words[:, 1]

    def _turn(self, documents: tuple[Document, ...], word: int) -> list[Document]:
        count = len(documents)
        return [documents[(word + at) % count] for at in range(min(count, self._most))]
