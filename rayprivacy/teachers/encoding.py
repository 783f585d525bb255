"""The encoding of one part of the sharded corpus into the feature store, group of texts by group. No Ray in here.

Privacy argument: a group's states are computed from its own texts alone (see `models.features`), whatever other groups
share its part or its file. For unit 'user' a group is a user, so that neither another user nor another number of
teachers changes a state; for 'record' and 'phrase' it is a shard, all that one teacher sees.
"""

from typing import Any

import pyarrow as pa

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.parts import read_part
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode
from rayprivacy.models.split_trunk import cut_below, lower_trunk
from rayprivacy.teachers.head_kinds import HEAD_KINDS
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec

CHUNK_POSITIONS = 32_768  # of one file: 38 MB at width 576; a writer holds four times that for a moment
_FORMATS = {"whole": 1, "filled": 2}


def store_recipe(base_digest: str, teachers: TeachersConfig) -> str:
    """Digest of everything public that decides cached states; M, stack, rank and epochs do not.

    Args:
        base_digest: names the weights of the base and their number format.
        teachers: what a teacher is; kinds that start from the same layer share their states.
    """
    shape = teachers.model_dump(mode="json", include={"max_tokens", "row_tokens", "max_rows"})
    return digest_json({"format": _FORMATS[teachers.calls], "base": base_digest, "cut": _cut(teachers), **shape})


def _cut(teachers: TeachersConfig) -> str:
    if teachers.kind in HEAD_KINDS:
        return "final"
    return "embeddings" if teachers.layers is None else f"below the last {teachers.layers}"


def trunk_of(spec: GroupSpec, backbone: Backbone) -> Any:
    """The layers below what a teacher trains; None is the whole trunk.

    Raises:
        ConfigError: the base cannot be cut, or has fewer layers than are to be adapted.
    """
    if spec.teachers.kind in HEAD_KINDS:
        return None
    return lower_trunk(backbone, cut_below(backbone, spec.teachers.layers))


def groups_of(table: pa.Table, unit: PrivacyUnit, shards: range) -> list[list[list[str]]]:
    """The texts of every group of every shard, in row order; a shard without users has no groups.

    Args:
        table: rows of one part, with the columns shard, user and text.
        unit: for 'user' each user is a group of their own, else each shard is one.
        shards: the shards of the part.
    """
    found: dict[int, dict[str, list[str]]] = {shard: {} for shard in shards}
    rows = zip(*(table[name].to_pylist() for name in ("shard", "user", "text")), strict=True)
    for shard, user, text in rows:
        found[shard].setdefault(user if unit is PrivacyUnit.USER else "", []).append(text)
    return [list(groups.values()) for groups in found.values()]


def shards_of(spec: GroupSpec, part: int) -> list[list[str]]:
    """The names of every shard's groups, in order, as `spec.store.read` takes them."""
    return [[spec.store.name(texts) for texts in groups] for groups in _groups(spec, part)]


def is_cached(spec: GroupSpec, part: int) -> bool:
    """Whether the store has every group of a part."""
    return not spec.store.missing([name for names in shards_of(spec, part) for name in names])


def encode_part(spec: GroupSpec, part: int, backbone: Backbone) -> None:
    """Encode the groups of a part that the store lacks, in files of at most CHUNK_POSITIONS or of one group.

    Deterministic up to the number of threads, and harmless to repeat: what is stored already is not computed again.
    """
    texts = {spec.store.name(group): group for shard in _groups(spec, part) for group in shard}
    trunk = trunk_of(spec, backbone)
    held: dict[str, Encoded] = {}
    positions = 0
    for name in spec.store.missing(list(texts)):
        encoded = _encode(texts[name], spec.teachers, backbone, trunk)
        if positions + encoded.ids.numel() > CHUNK_POSITIONS:
            spec.store.write(held)
            held = {}
            positions = 0
        held[name] = encoded
        positions += encoded.ids.numel()
    spec.store.write(held)


def _groups(spec: GroupSpec, part: int) -> list[list[list[str]]]:
    return groups_of(read_part(spec.shards, part), spec.unit, spec.teachers.members(part))


def _encode(texts: list[str], config: TeachersConfig, backbone: Backbone, trunk: Any) -> Encoded:
    documents = [backbone.document(text, config.max_tokens) for text in texts]
    return encode(backbone, documents, config.row_tokens, config.max_rows, trunk, whole=config.whole)
