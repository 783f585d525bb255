"""The encoding of one part of the sharded corpus, or of a piece of it, into the feature store. No Ray in here.

Privacy argument: a group's states are computed from its own texts alone (see `models.features`), whatever other groups
share its part or its file. For unit 'user' a group is a user, so that neither another user nor another number of
teachers changes a state; for 'record' and 'phrase' it is a shard, all that one teacher sees.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from rayprivacy.core.private import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_tables, read_part
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode
from rayprivacy.models.layers import cut_below, lower_trunk
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec

CHUNK_POSITIONS = 32_768  # of one file: 38 MB at width 576; a writer holds four times that for a moment
_FORMAT = 2  # rows are run up to their last token


class GroupPiece(NamedTuple):
    """Some groups of a part, by their names: about one in `pieces` of them, a public number."""

    number: int = 0
    pieces: int = 1

    def holds(self, name: str) -> bool:
        """Whether a group is in this piece; `name` is what the store calls it, a keyed digest."""
        return int(name[:16], 16) % self.pieces == self.number


WHOLE = GroupPiece()


def store_recipe(base_digest: str, teachers: TeachersConfig) -> str:
    """Digest of everything public that decides cached states; M, stack, rank and epochs do not."""
    shape = teachers.model_dump(mode="json", include={"max_tokens", "row_tokens", "max_rows"})
    cut = "embeddings" if teachers.layers is None else f"below the last {teachers.layers}"
    cut = "final" if teachers.kind == "square" else cut
    return digest_json({"format": _FORMAT, "base": base_digest, "cut": cut, **shape})


def trunk_of(spec: GroupSpec, backbone: Backbone) -> Any:
    """The layers below what a teacher trains; None is the whole trunk."""
    if spec.teachers.kind == "square":
        return None
    return lower_trunk(backbone, cut_below(backbone, spec.teachers.layers))


def groups_of(table: pa.Table, unit: PrivacyUnit, shards: range) -> list[list[list[str]]]:
    """The texts of the groups of shards, in row order: a user's with unit 'user', else a shard's, if it has any."""
    found: dict[int, dict[str, list[str]]] = {shard: {} for shard in shards}
    rows = zip(*(table[name].to_pylist() for name in ("shard", "user", "text")), strict=True)
    for shard, user, text in rows:
        found[shard].setdefault(user if unit is PrivacyUnit.USER else "", []).append(text)
    return [list(groups.values()) for groups in found.values()]


def shards_of(spec: GroupSpec, shards: range) -> list[list[str]]:
    """The names of the groups of some shards, neighbours in one part, in order, as `spec.store.read` takes them."""
    found: list[list[str]] = [[] for _ in shards]
    for tables in _groups(spec, shards):
        for names, groups in zip(found, tables, strict=True):
            names += map(spec.store.name, groups)
    return found


def is_cached(spec: GroupSpec, part: int, piece: GroupPiece = WHOLE) -> bool:
    """Whether the store has every group of a part, or of a piece of it."""
    names = [name for shard in shards_of(spec, spec.teachers.members(part)) for name in shard]
    return not spec.store.missing([name for name in names if piece.holds(name)])


def encode_part(spec: GroupSpec, part: int, backbone: Backbone, piece: GroupPiece = WHOLE) -> None:
    """Encode the groups of a piece of a part that the store lacks, in files of at most CHUNK_POSITIONS or of one group.

    What a group becomes does not depend on the piece. Deterministic up to the number of threads, and harmless to
    repeat: what is stored already is not computed again.
    """
    config, trunk = spec.teachers, trunk_of(spec, backbone)
    held: dict[str, Encoded] = {}
    positions = 0
    for name, texts in _missing(spec, part, piece):
        documents = [backbone.document(text, config.max_tokens) for text in texts]
        encoded = encode(backbone, documents, config.row_tokens, config.max_rows, trunk)
        if positions + encoded.ids.numel() > CHUNK_POSITIONS:
            spec.store.write(held)
            held, positions = {}, 0
        held[name] = encoded
        positions += encoded.ids.numel()
    spec.store.write(held)


def _missing(spec: GroupSpec, part: int, piece: GroupPiece) -> Iterator[tuple[str, list[str]]]:
    seen: set[str] = set()
    for shards in _groups(spec, spec.teachers.members(part)):
        texts = {spec.store.name(group): group for groups in shards for group in groups}
        wanted = [name for name in texts if piece.holds(name) and name not in seen]
        seen.update(wanted)
        yield from ((name, texts[name]) for name in spec.store.missing(wanted))


def _groups(spec: GroupSpec, shards: range) -> Iterator[list[list[list[str]]]]:
    """The groups of every one of these shards of a part, file after file of it where groups are users."""
    part, by_user = spec.teachers.part_of(shards.start), spec.unit is PrivacyUnit.USER
    # A shard may go on in the next file, a user does not.
    tables = part_tables(spec.shards, part, shards) if by_user else [read_part(spec.shards, part, shards)]
    return (groups_of(table, spec.unit, shards) for table in tables)
