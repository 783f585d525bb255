"""A group's cached states are a function of its own texts, whatever else is in the part and however it is cut up."""

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import PAD, Encoded, encode
from rayprivacy.models.store import FeatureStore
from rayprivacy.teachers import encoding
from rayprivacy.teachers.encoding import GroupPiece, encode_part, groups_of, is_cached, shards_of, store_recipe
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

CONFIG = TeachersConfig(count=5, max_tokens=20, row_tokens=32, max_rows=16, stack=3)
Users = dict[str, list[str]]
WORDS = "the sun is out and we like bread with soup so they take an early train home".split()  # noqa: SIM905


def corpus(users: int, seed: int = 0, most: int = 12) -> Users:
    chance = random.Random(seed)

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(0, 18)))

    return {f"user-{n}": [text() for _ in range(chance.randint(1, most))] for n in range(users)}


def placed(users: Users, count: int = 5) -> dict[tuple[int, str], list[str]]:
    return {(int(user.split("-")[1]) * 7 % count, user): texts for user, texts in users.items()}


@pytest.fixture
def spec(spec_of: Any) -> GroupSpec:
    return spec_of(CONFIG, store_recipe("base", CONFIG))


@pytest.fixture
def encode_all(tiny_backbone: Backbone, write_parts: Any) -> Callable[[GroupSpec, Users], None]:
    def encoded(spec: GroupSpec, users: Users) -> None:
        write_parts(spec, placed(users, spec.teachers.count))
        for part in range(spec.teachers.parts):
            encode_part(spec, part, tiny_backbone)

    return encoded


def states(spec: GroupSpec, texts: list[str]) -> Encoded:
    return spec.store.read([spec.store.name(texts)])[0]


def same(one: Encoded, two: Encoded) -> bool:
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in ("ids", "segment", "hidden"))


def test_groups_are_users_or_shards(table_of: Any) -> None:
    rows = table_of(placed({"user-1": ["a", "b"], "user-2": ["c"], "user-6": ["", "d"]}))
    assert groups_of(rows, PrivacyUnit.USER, range(5)) == [[], [], [["a", "b"], ["", "d"]], [], [["c"]]]
    for unit in (PrivacyUnit.RECORD, PrivacyUnit.PHRASE):
        assert groups_of(rows, unit, range(5)) == [[], [], [["a", "b", "", "d"]], [], [["c"]]]
    assert groups_of(table_of({}), PrivacyUnit.USER, range(3, 5)) == [[], []]


@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_every_shard_finds_its_own_documents(
    spec: GroupSpec, tiny_backbone: Backbone, unit: PrivacyUnit, write_parts: Any, encode_all: Any
) -> None:
    spec, users = replace(spec, unit=unit), corpus(12)
    write_parts(spec, placed(users))
    assert not is_cached(spec, 0)
    encode_all(spec, users)
    for part in range(CONFIG.parts):
        assert is_cached(spec, part)
        for shard, names in zip(CONFIG.members(part), shards_of(spec, spec.teachers.members(part)), strict=True):
            inside = [texts for (place, _), texts in sorted(placed(users).items()) if place == shard]
            whole = inside if unit is PrivacyUnit.USER else [[text for texts in inside for text in texts]]
            for texts, found in zip(whole, spec.store.read(names), strict=True):
                documents = [tiny_backbone.document(text, CONFIG.max_tokens) for text in texts]
                assert same(found, encode(tiny_backbone, documents, CONFIG.row_tokens, CONFIG.max_rows))


def test_a_users_states_do_not_depend_on_anybody_else(spec: GroupSpec, encode_all: Any, tmp_path: Path) -> None:
    """Sensitivity rests on this: whoever joins, leaves or writes more, the others' states stay the same to the bit."""
    users = corpus(8, most=40)
    worlds = [users, {"user-3": users["user-3"]}, users | corpus(30, seed=1, most=40) | {"user-3": users["user-3"]}]
    found = []
    for number, world in enumerate(worlds):
        store = replace(spec.store, root=tmp_path / f"store-{number}")
        store.prepare()
        here = replace(spec, store=store, shards=tmp_path / f"shards-{number}")
        encode_all(here, world)
        found.append(states(here, users["user-3"]))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_one_changed_user_is_one_new_group(
    spec: GroupSpec, tiny_backbone: Backbone, encode_all: Any, monkeypatch: Any
) -> None:
    users = corpus(12)
    encode_all(spec, users)
    computed: list[list[list[int]]] = []

    def recorded(backbone: Backbone, documents: list[list[int]], *rest: Any, **more: Any) -> Encoded:
        computed.append(documents)
        return encode(backbone, documents, *rest, **more)

    monkeypatch.setattr(encoding, "encode", recorded)
    encode_all(spec, users)
    assert computed == []
    changed = users | {"user-4": [*users["user-4"], "one thing more"]}
    encode_all(spec, changed)
    assert computed == [[tiny_backbone.document(text, CONFIG.max_tokens) for text in changed["user-4"]]]
    encode_all(spec, {user: texts for user, texts in changed.items() if user != "user-5"})
    assert len(computed) == 1


@pytest.mark.parametrize("change", [{"count": 2}, {"count": 11, "stack": 4}, {"rank": 3, "epochs": 9.0, "stack": 1}])
def test_other_teachers_cost_no_trunk_pass(spec: GroupSpec, encode_all: Any, write_parts: Any, change: Any) -> None:
    users = corpus(12)
    encode_all(spec, users)
    teachers = CONFIG.model_copy(update=change)
    assert store_recipe("base", teachers) == spec.store.recipe
    other = replace(spec, teachers=teachers, shards=spec.shards.with_name("others"))
    write_parts(other, placed(users, teachers.count))
    assert all(is_cached(other, part) for part in range(teachers.parts))


def test_users_with_equal_texts_share_states_and_both_count(spec: GroupSpec, encode_all: Any) -> None:
    encode_all(spec, {"user-1": ["so alike"], "user-6": ["so alike"]})
    names = shards_of(spec, spec.teachers.members(0))[2]
    assert len(names) == 2
    assert len(set(names)) == 1


def test_files_are_bounded(spec: GroupSpec, encode_all: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(encoding, "CHUNK_POSITIONS", 256)
    written: list[dict[str, Encoded]] = []
    real = FeatureStore.write
    monkeypatch.setattr(FeatureStore, "write", lambda self, groups: written.append(dict(groups)) or real(self, groups))
    encode_all(spec, corpus(20, most=30))
    sizes = [(len(groups), sum(one.ids.numel() for one in groups.values())) for groups in written]
    assert all(positions <= 256 or groups == 1 for groups, positions in sizes)
    assert any(groups > 1 for groups, _ in sizes)
    assert max(positions for _, positions in sizes) <= CONFIG.max_rows * CONFIG.row_tokens
    assert all(is_cached(spec, part) for part in range(CONFIG.parts))


def test_what_decides_the_states_is_in_the_recipe() -> None:
    changes: list[dict[str, Any]] = [{}, {"max_tokens": 10}, {"row_tokens": 64}, {"max_rows": 5}]
    changes += [{"kind": "lora", "layers": layers} for layers in (None, 1, 2)]
    ours = [store_recipe("base", CONFIG.model_copy(update=change)) for change in changes]
    assert len({*ours, store_recipe("other", CONFIG)}) == 8


@pytest.mark.parametrize("layers", [1, None])
def test_kinds_with_layers_of_their_own_get_what_lies_below(
    spec: GroupSpec, tiny_backbone: Backbone, encode_all: Any, layers: int | None
) -> None:
    teachers, texts = CONFIG.model_copy(update={"kind": "lora", "layers": layers}), ["the sun is out", "we like bread"]
    store = replace(spec.store, recipe=store_recipe("base", teachers))
    store.prepare()
    spec = replace(spec, teachers=teachers, store=store)
    encode_all(spec, {"user-1": texts})
    found, first = states(spec, texts), tiny_backbone.document(texts[0], 20)
    ids = found.ids[0]
    assert ids[: len(first)].tolist() == first
    if layers is None:
        embedded = tiny_backbone.model.get_input_embeddings()(ids).bfloat16()
        filled = found.segment[0] != PAD
        assert torch.equal(found.hidden[0][filled], embedded[filled])
    else:
        alone = tiny_backbone.model(input_ids=ids[None, : len(first)], output_hidden_states=True)
        expected = alone.hidden_states[1][0].bfloat16()
        torch.testing.assert_close(found.hidden[0, : len(first)], expected, rtol=0.02, atol=0.02)
    deep = replace(spec, teachers=teachers.model_copy(update={"layers": 3}))
    with pytest.raises(ConfigError, match="layers is 3"):
        encoding.trunk_of(deep, tiny_backbone)


def test_the_spec_holds_no_text_and_no_key(spec: GroupSpec, encode_all: Any) -> None:
    encode_all(spec, {"user-1": ["the sun is out"]})
    data = pickle.dumps(spec)
    assert len(data) < 4000
    for secret in (b"user-1", b"the sun", spec.store.key_path.read_bytes()):
        assert secret not in data
    assert not any(word in path.name for path in spec.store.folder.iterdir() for word in ("user", "sun"))


def test_pieces_of_a_part_and_of_its_files_give_the_states_of_the_whole(
    spec: GroupSpec, tiny_backbone: Backbone, encode_all: Any, tmp_path: Path
) -> None:
    whole = replace(spec, store=replace(spec.store, root=tmp_path / "whole"))
    whole.store.prepare()
    encode_all(whole, corpus(30))
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
