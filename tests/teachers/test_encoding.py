"""A group's cached states are a function of its own texts, whatever else is in the part and however it is cut up."""

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import create_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import PAD, Encoded, encode
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.teachers import encoding
from rayprivacy.teachers.encoding import (
    GroupPiece,
    encode_part,
    groups_of,
    is_cached,
    shards_of,
    store_recipe,
    trunk_of,
)
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.workspace import Workspace

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

CONFIG = TeachersConfig(count=5, max_tokens=20, row_tokens=32, max_rows=16, stack=3)
SCHEMA = pa.schema([("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())])
WORDS = "the sun is out and we like bread with soup so they take an early train home".split()  # noqa: SIM905


def corpus(users: int, seed: int = 0, most: int = 12) -> dict[str, list[str]]:
    chance = random.Random(seed)
    return {
        f"user-{n}": [" ".join(chance.choices(WORDS, k=chance.randint(0, 18))) for _ in range(chance.randint(1, most))]
        for n in range(users)
    }


def table(users: dict[str, list[str]], place: Any) -> pa.Table:
    rows = [
        {"shard": place(user), "user": user, "record": record, "text": text}
        for user, texts in users.items()
        for record, text in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA).sort_by(
        [(name, "ascending") for name in ("shard", "user", "record")]
    )


def place_by(count: int) -> Any:
    return lambda user: int(user.split("-")[1]) * 7 % count


def write_parts(spec: GroupSpec, users: dict[str, list[str]]) -> None:
    spec.shards.mkdir(exist_ok=True)
    whole = table(users, place_by(spec.teachers.count))
    for part in range(spec.teachers.parts):
        members = spec.teachers.members(part)
        inside = pa.compute.is_in(whole["shard"], pa.array(members, pa.int32()))
        pq.write_table(whole.filter(inside), part_path(spec.shards, part))


@pytest.fixture
def spec(tiny_base: Path, tmp_path: Path) -> GroupSpec:
    create_key(tmp_path / "key")
    store = FeatureStore(tmp_path / "features", store_recipe("base", CONFIG), tmp_path / "key")
    store.prepare()
    model = ModelConfig(base=str(tiny_base), dtype="float32")
    return GroupSpec(
        model,
        CONFIG,
        PrivacyUnit.USER,
        tmp_path / "shards",
        store,
        tmp_path / "basis",
        tmp_path / "warm",
        Workspace(tmp_path / "teachers", "recipe"),
    )


def encode_all(spec: GroupSpec, backbone: Backbone) -> None:
    for part in range(spec.teachers.parts):
        encode_part(spec, part, backbone)


def states(spec: GroupSpec, texts: list[str]) -> Encoded:
    return spec.store.read([spec.store.name(texts)])[0]


def same(one: Encoded, two: Encoded) -> bool:
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in ("ids", "segment", "hidden"))


def test_groups_are_users_or_shards() -> None:
    rows = table({"user-1": ["a", "b"], "user-2": ["c"], "user-6": ["", "d"]}, place_by(5))
    assert groups_of(rows, PrivacyUnit.USER, range(5)) == [[], [], [["a", "b"], ["", "d"]], [], [["c"]]]
    for unit in (PrivacyUnit.RECORD, PrivacyUnit.PHRASE):
        assert groups_of(rows, unit, range(5)) == [[], [], [["a", "b", "", "d"]], [], [["c"]]]
    assert groups_of(SCHEMA.empty_table(), PrivacyUnit.USER, range(3, 5)) == [[], []]


@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_every_shard_finds_its_own_documents(spec: GroupSpec, tiny_backbone: Backbone, unit: PrivacyUnit) -> None:
    spec, users = replace(spec, unit=unit), corpus(12)
    write_parts(spec, users)
    assert not is_cached(spec, 0)
    encode_all(spec, tiny_backbone)
    for part in range(CONFIG.parts):
        assert is_cached(spec, part)
        for shard, names in zip(CONFIG.members(part), shards_of(spec, spec.teachers.members(part)), strict=True):
            inside = [texts for user, texts in sorted(users.items()) if place_by(5)(user) == shard]
            whole = inside if unit is PrivacyUnit.USER else [[text for texts in inside for text in texts]]
            for texts, found in zip(whole, spec.store.read(names), strict=True):
                documents = [tiny_backbone.document(text, CONFIG.max_tokens) for text in texts]
                assert same(found, encode(tiny_backbone, documents, CONFIG.row_tokens, CONFIG.max_rows))


def test_a_users_states_do_not_depend_on_anybody_else(spec: GroupSpec, tiny_backbone: Backbone, tmp_path: Path) -> None:
    """Sensitivity rests on this: whoever joins, leaves or writes more, the others' states stay the same to the bit."""
    users = corpus(8, most=40)
    worlds = [users, {"user-3": users["user-3"]}, users | corpus(30, seed=1, most=40) | {"user-3": users["user-3"]}]
    found = []
    for number, world in enumerate(worlds):
        store = replace(spec.store, root=tmp_path / f"store-{number}")
        store.prepare()
        here = replace(spec, store=store, shards=tmp_path / f"shards-{number}")
        write_parts(here, world)
        encode_all(here, tiny_backbone)
        found.append(states(here, users["user-3"]))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_one_changed_user_is_one_new_group(spec: GroupSpec, tiny_backbone: Backbone, monkeypatch: Any) -> None:
    users = corpus(12)
    write_parts(spec, users)
    encode_all(spec, tiny_backbone)
    computed: list[list[list[int]]] = []

    def recorded(backbone: Backbone, documents: list[list[int]], *rest: Any, **more: Any) -> Encoded:
        computed.append(documents)
        return encode(backbone, documents, *rest, **more)

    monkeypatch.setattr(encoding, "encode", recorded)
    encode_all(spec, tiny_backbone)
    assert computed == []
    changed = users | {"user-4": [*users["user-4"], "one thing more"]}
    write_parts(spec, changed)
    encode_all(spec, tiny_backbone)
    assert computed == [[tiny_backbone.document(text, CONFIG.max_tokens) for text in changed["user-4"]]]
    write_parts(spec, {user: texts for user, texts in changed.items() if user != "user-5"})
    encode_all(spec, tiny_backbone)
    assert len(computed) == 1


@pytest.mark.parametrize("change", [{"count": 2}, {"count": 11, "stack": 4}, {"rank": 3, "epochs": 9.0, "stack": 1}])
def test_other_teachers_cost_no_trunk_pass(spec: GroupSpec, tiny_backbone: Backbone, change: dict[str, Any]) -> None:
    users = corpus(12)
    write_parts(spec, users)
    encode_all(spec, tiny_backbone)
    teachers = CONFIG.model_copy(update=change)
    assert store_recipe("base", teachers) == spec.store.recipe
    other = replace(spec, teachers=teachers, shards=spec.shards.with_name("others"))
    write_parts(other, users)
    assert all(is_cached(other, part) for part in range(teachers.parts))


def test_users_with_equal_texts_share_states_and_both_count(spec: GroupSpec, tiny_backbone: Backbone) -> None:
    write_parts(spec, {"user-1": ["so alike"], "user-6": ["so alike"]})
    encode_all(spec, tiny_backbone)
    names = shards_of(spec, spec.teachers.members(0))[2]
    assert len(names) == 2
    assert len(set(names)) == 1


def test_files_are_bounded(spec: GroupSpec, tiny_backbone: Backbone, monkeypatch: Any) -> None:
    monkeypatch.setattr(encoding, "CHUNK_POSITIONS", 256)
    written: list[dict[str, Encoded]] = []
    real = FeatureStore.write
    monkeypatch.setattr(FeatureStore, "write", lambda self, groups: written.append(dict(groups)) or real(self, groups))
    write_parts(spec, corpus(20, most=30))
    encode_all(spec, tiny_backbone)
    sizes = [(len(groups), sum(one.ids.numel() for one in groups.values())) for groups in written]
    assert all(positions <= 256 or groups == 1 for groups, positions in sizes)
    assert any(groups > 1 for groups, _ in sizes)
    assert max(positions for _, positions in sizes) <= CONFIG.max_rows * CONFIG.row_tokens
    assert all(is_cached(spec, part) for part in range(CONFIG.parts))


def test_what_decides_the_states_is_in_the_recipe() -> None:
    changes = (
        {"max_tokens": 10},
        {"row_tokens": 64},
        {"max_rows": 5},
        {"kind": "lora"},
        {"kind": "lora", "layers": 1},
        {"kind": "lora", "layers": 2},
    )
    ours = [store_recipe("base", CONFIG.model_copy(update=change)) for change in ({}, *changes)]
    assert len({*ours, store_recipe("other", CONFIG)}) == 8


@pytest.mark.parametrize(
    ("change", "layers"),
    [({"kind": "lora", "layers": 1}, 1), ({"kind": "lora"}, 0)],
)
def test_kinds_with_layers_of_their_own_get_what_lies_below(
    spec: GroupSpec, tiny_backbone: Backbone, change: dict[str, Any], layers: int
) -> None:
    teachers = CONFIG.model_copy(update=change)
    store = replace(spec.store, recipe=store_recipe("base", teachers))
    store.prepare()
    spec = replace(spec, teachers=teachers, store=store)
    write_parts(spec, {"user-1": ["the sun is out", "we like bread"]})
    encode_all(spec, tiny_backbone)
    found = states(spec, ["the sun is out", "we like bread"])
    ids, documents = found.ids[0], [tiny_backbone.document(text, 20) for text in ("the sun is out", "we like bread")]
    assert ids[: len(documents[0])].tolist() == documents[0]
    if layers == 0:
        embedded = tiny_backbone.model.get_input_embeddings()(ids).bfloat16()
        filled = found.segment[0] != PAD
        assert torch.equal(found.hidden[0][filled], embedded[filled])
    else:
        alone = tiny_backbone.model(input_ids=ids[None, : len(documents[0])], output_hidden_states=True)
        torch.testing.assert_close(
            found.hidden[0, : len(documents[0])], alone.hidden_states[1][0].bfloat16(), rtol=0.02, atol=0.02
        )


def test_heads_take_the_whole_trunk_and_too_many_layers_are_refused(spec: GroupSpec, tiny_backbone: Backbone) -> None:
    assert trunk_of(spec, tiny_backbone) is None
    deep = replace(spec, teachers=CONFIG.model_copy(update={"kind": "lora", "layers": 3}))
    with pytest.raises(ConfigError, match="layers is 3"):
        trunk_of(deep, tiny_backbone)


def test_the_spec_holds_no_text_and_no_key(spec: GroupSpec, tiny_backbone: Backbone) -> None:
    write_parts(spec, {"user-1": ["the sun is out"]})
    encode_all(spec, tiny_backbone)
    data = pickle.dumps(spec)
    assert len(data) < 4000
    for secret in (b"user-1", b"the sun", spec.store.key_path.read_bytes()):
        assert secret not in data
    assert not any(word in path.name for path in spec.store.folder.iterdir() for word in ("user", "sun"))


def test_pieces_of_a_part_and_of_its_files_give_the_states_of_the_whole(
    spec: GroupSpec, tiny_backbone: Backbone, tmp_path: Path
) -> None:
    whole = replace(spec, store=replace(spec.store, root=tmp_path / "whole"))
    whole.store.prepare()
    write_parts(spec, corpus(30))
    encode_all(whole, tiny_backbone)
    names = [shards_of(spec, spec.teachers.members(part)) for part in range(CONFIG.parts)]
    for part in range(CONFIG.parts):  # two files now, cut between two users
        rows = pq.read_table(part_path(spec.shards, part))
        middle = rows["user"].to_pylist().index(rows["user"][len(rows) // 2].as_py())
        pq.write_table(rows.slice(middle), part_path(spec.shards, part, 1))
        pq.write_table(rows.slice(0, middle), part_path(spec.shards, part))
    assert [shards_of(spec, spec.teachers.members(part)) for part in range(CONFIG.parts)] == names

    pieces = [GroupPiece(number, 3) for number in range(3)]
    for part, shards in enumerate(names):
        own = {name for shard in shards for name in shard}
        for number, piece in enumerate(pieces):
            nobody = not any(map(piece.holds, own))  # as the key, and chance, have it
            assert is_cached(spec, part, piece) == nobody
            encode_part(spec, part, tiny_backbone, piece)
            assert is_cached(spec, part, piece)
            left = {name for name in own if not any(each.holds(name) for each in pieces[: number + 1])}
            assert set(spec.store.missing(sorted(own))) == left, "each group is in one piece"
        for one, other in zip(spec.store.read(sorted(own)), whole.store.read(sorted(own)), strict=True):
            assert same(one, other)
