"""A group's states are a function of its own texts, and its teachers are trained once, rebuilt, and vote as one sum."""

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from rayprivacy.core.errors import ConfigError, ReleaseError, ShardError
from rayprivacy.core.keys import create_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path
from rayprivacy.models.features import PAD, Encoded, encode
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.release.votes import VoteMechanism
from rayprivacy.teachers import encoding
from rayprivacy.teachers.encoding import GroupPiece, encode_part, groups_of, is_cached, shards_of, store_recipe
from rayprivacy.teachers.group import TeacherGroup, kind_for
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec, training_pieces, voting_pieces
from rayprivacy.teachers.votes import Question, VoteTotal
from rayprivacy.teachers.workspace import Workspace

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor
SCHEMA = pa.schema([("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())])
ENCODING = TeachersConfig(count=5, max_tokens=20, row_tokens=32, max_rows=16, stack=3)
Users = dict[str, list[str]]
WORDS = "the sun is out and we like bread with soup so they take an early train home".split()  # noqa: SIM905


def corpus(users, seed=0, most=12):
    chance = random.Random(seed)

    def text():
        return " ".join(chance.choices(WORDS, k=chance.randint(0, 18)))

    return {f"user-{n}": [text() for _ in range(chance.randint(1, most))] for n in range(users)}


def table(users, count=5):
    """Rows as `shard_corpus` writes them, for this number of teachers."""
    placed = {(int(user.split("-")[1]) * 7 % count, user): texts for user, texts in users.items()}
    rows = [(*who, record, text) for who in sorted(placed) for record, text in enumerate(placed[who])]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def write_parts(spec, users):
    spec.shards.mkdir(exist_ok=True)
    whole = table(users, spec.teachers.count)
    for part in range(spec.teachers.parts):
        members = pa.array(spec.teachers.members(part), pa.int32())
        pq.write_table(whole.filter(pa.compute.is_in(whole["shard"], members)), part_path(spec.shards, part))


@pytest.fixture
def encode_all(tiny_backbone):
    def encoded(spec, users):
        write_parts(spec, users)
        for part in range(spec.teachers.parts):
            encode_part(spec, part, tiny_backbone)
        return spec

    return encoded


@pytest.fixture
def bare(tiny_base, tmp_path):
    """Nothing is encoded or trained yet."""
    create_key(tmp_path / "key")
    store = FeatureStore(tmp_path / "features", store_recipe("base", ENCODING), tmp_path / "key")
    workspace = Workspace(tmp_path / "teachers", "recipe")
    store.prepare()
    workspace.prepare()
    model, files = ModelConfig(base=str(tiny_base), dtype="float32"), (tmp_path / "basis", tmp_path / "warm")
    return GroupSpec(model, ENCODING, PrivacyUnit.USER, tmp_path / "shards", store, *files, workspace)


def states(bare, texts):
    return bare.store.read([bare.store.name(texts)])[0]


def same(one, two):
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in ("ids", "segment", "hidden"))


def test_groups_are_users_or_shards():
    rows = table({"user-1": ["a", "b"], "user-2": ["c"], "user-6": ["", "d"]})
    assert groups_of(rows, PrivacyUnit.USER, range(5)) == [[], [], [["a", "b"], ["", "d"]], [], [["c"]]]
    for unit in (PrivacyUnit.RECORD, PrivacyUnit.PHRASE):
        assert groups_of(rows, unit, range(5)) == [[], [], [["a", "b", "", "d"]], [], [["c"]]]
    assert groups_of(table({}), PrivacyUnit.USER, range(3, 5)) == [[], []]
    # What decides the states is in the recipe.
    changes: list[dict[str, Any]] = [{}, {"max_tokens": 10}, {"row_tokens": 64}, {"max_rows": 5}]
    changes += [{"kind": "lora", "layers": layers} for layers in (None, 1, 2)]
    ours = [store_recipe("base", ENCODING.model_copy(update=change)) for change in changes]
    assert len({*ours, store_recipe("other", ENCODING)}) == 8


@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_every_shard_finds_its_own_documents(bare, tiny_backbone, unit, encode_all):
    bare, users = replace(bare, unit=unit), corpus(12)
    write_parts(bare, users)
    assert not is_cached(bare, 0)
    encode_all(bare, users)
    for part in range(ENCODING.parts):
        assert is_cached(bare, part)
        for shard, names in zip(ENCODING.members(part), shards_of(bare, bare.teachers.members(part)), strict=True):
            inside = [users[user] for user in sorted(users) if int(user.split("-")[1]) * 7 % 5 == shard]
            whole = inside if unit is PrivacyUnit.USER else [[text for texts in inside for text in texts]]
            for texts, found in zip(whole, bare.store.read(names), strict=True):
                documents = [tiny_backbone.document(text, ENCODING.max_tokens) for text in texts]
                assert same(found, encode(tiny_backbone, documents, ENCODING.row_tokens, ENCODING.max_rows))


def test_a_users_states_do_not_depend_on_anybody_else(bare, encode_all, tmp_path):
    """Sensitivity rests on this: whoever joins, leaves or writes more, the others' states stay the same to the bit."""
    users = corpus(8, most=40)
    worlds = [users, {"user-3": users["user-3"]}, users | corpus(30, seed=1, most=40) | {"user-3": users["user-3"]}]
    found = []
    for number, world in enumerate(worlds):
        store = replace(bare.store, root=tmp_path / f"store-{number}")
        store.prepare()
        here = replace(bare, store=store, shards=tmp_path / f"shards-{number}")
        encode_all(here, world)
        found.append(states(here, users["user-3"]))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_one_changed_user_is_one_new_group(bare, tiny_backbone, encode_all, monkeypatch):
    users = corpus(12)
    encode_all(bare, users)
    computed: list[list[list[int]]] = []

    def recorded(backbone, documents, *rest, **more):
        computed.append(documents)
        return encode(backbone, documents, *rest, **more)

    monkeypatch.setattr(encoding, "encode", recorded)
    encode_all(bare, users)
    assert computed == []
    changed = users | {"user-4": [*users["user-4"], "one thing more"]}
    encode_all(bare, changed)
    assert computed == [[tiny_backbone.document(text, ENCODING.max_tokens) for text in changed["user-4"]]]
    encode_all(bare, {user: texts for user, texts in changed.items() if user != "user-5"})
    assert len(computed) == 1


@pytest.mark.parametrize("change", [{"count": 2}, {"count": 11, "stack": 4}, {"rank": 3, "epochs": 9.0, "stack": 1}])
def test_other_teachers_cost_no_trunk_pass(bare, encode_all, change):
    users = corpus(12)
    encode_all(bare, users)
    teachers = ENCODING.model_copy(update=change)
    assert store_recipe("base", teachers) == bare.store.recipe
    other = replace(bare, teachers=teachers, shards=bare.shards.with_name("others"))
    write_parts(other, users)
    assert all(is_cached(other, part) for part in range(teachers.parts))


def test_users_with_equal_texts_share_states_and_both_count(bare, encode_all):
    encode_all(bare, {"user-1": ["so alike"], "user-6": ["so alike"]})
    names = shards_of(bare, bare.teachers.members(0))[2]
    assert len(names) == 2
    assert len(set(names)) == 1
    # The spec holds no text and no key.
    data = pickle.dumps(bare)
    assert len(data) < 4000
    for secret in (b"user-1", b"alike", bare.store.key_path.read_bytes()):
        assert secret not in data
    assert not any(word in path.name for path in bare.store.folder.iterdir() for word in ("user", "alike"))


def test_files_are_bounded(bare, encode_all, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_POSITIONS", 256)
    written: list[dict[str, Encoded]] = []
    real = FeatureStore.write
    monkeypatch.setattr(FeatureStore, "write", lambda self, groups: written.append(dict(groups)) or real(self, groups))
    encode_all(bare, corpus(20, most=30))
    sizes = [(len(groups), sum(one.ids.numel() for one in groups.values())) for groups in written]
    assert all(positions <= 256 or groups == 1 for groups, positions in sizes)
    assert any(groups > 1 for groups, _ in sizes)
    assert max(positions for _, positions in sizes) <= ENCODING.max_rows * ENCODING.row_tokens
    assert all(is_cached(bare, part) for part in range(ENCODING.parts))


@pytest.mark.parametrize("layers", [1, None])
def test_kinds_with_layers_of_their_own_get_what_lies_below(bare, tiny_backbone, encode_all, layers):
    texts = ["the sun is out", "we like bread"]
    teachers = ENCODING.model_copy(update={"kind": "lora", "layers": layers})
    store = replace(bare.store, recipe=store_recipe("base", teachers))
    store.prepare()
    bare = replace(bare, teachers=teachers, store=store)
    encode_all(bare, {"user-1": texts})
    found, first = states(bare, texts), tiny_backbone.document(texts[0], 20)
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
    deep = replace(bare, teachers=teachers.model_copy(update={"layers": 3}))
    with pytest.raises(ConfigError, match="layers is 3"):
        encoding.trunk_of(deep, tiny_backbone)


def test_pieces_of_a_part_and_of_its_files_give_the_states_of_the_whole(bare, tiny_backbone, encode_all, tmp_path):
    whole = replace(bare, store=replace(bare.store, root=tmp_path / "whole"))
    whole.store.prepare()
    encode_all(whole, corpus(30))
    names = [shards_of(bare, bare.teachers.members(part)) for part in range(ENCODING.parts)]
    for part in range(ENCODING.parts):  # two files now, cut between two users
        rows = pq.read_table(part_path(bare.shards, part))
        middle = rows["user"].to_pylist().index(rows["user"][len(rows) // 2].as_py())
        pq.write_table(rows.slice(middle), part_path(bare.shards, part, 1))
        pq.write_table(rows.slice(0, middle), part_path(bare.shards, part))
    assert [shards_of(bare, bare.teachers.members(part)) for part in range(ENCODING.parts)] == names

    pieces = [GroupPiece(number, 3) for number in range(3)]
    for part, shards in enumerate(names):
        own = {name for shard in shards for name in shard}
        for number, piece in enumerate(pieces):
            nobody = not any(map(piece.holds, own))  # as the key, and chance, have it
            assert is_cached(bare, part, piece) == nobody
            encode_part(bare, part, tiny_backbone, piece)
            assert is_cached(bare, part, piece)
            left = {name for name in own if not any(each.holds(name) for each in pieces[: number + 1])}
            assert set(bare.store.missing(sorted(own))) == left, "each group is in one piece"
        for one, other in zip(bare.store.read(sorted(own)), whole.store.read(sorted(own)), strict=True):
            assert same(one, other)


CONFIG = TeachersConfig(count=5, max_tokens=20, row_tokens=32, max_rows=4, rank=16, max_steps=2, batch=8, stack=3)
USERS = {"user-0": ["the sun is out", "i like bread"], "user-2": ["hello", "", "so nice"]}
USERS |= {"user-3": ["play cards at home"], "user-4": ["take the early train " * 20]}  # nobody is in shard 2
MECHANISM = VoteMechanism(queries=40, candidates=8, teachers=5, sigma=1.0)


@pytest.fixture
def spec(bare, encode_all, tiny_basis):
    store = replace(bare.store, recipe=store_recipe("base", CONFIG))
    store.prepare()
    found = replace(bare, teachers=CONFIG, store=store)
    tensors = {name: getattr(tiny_basis, name).contiguous() for name in ("inward", "outward", "shortlist")}
    save_file(tensors, found.basis)
    save_file({"matrix": torch.eye(16) / 50}, found.warm)
    return encode_all(found, USERS)


@pytest.fixture
def queries(tiny_features, asked):
    return asked(tiny_features.hidden[:40].float(), torch.zeros(40, 2).long())


@pytest.fixture
def question(queries):
    return Question.of(queries, MECHANISM)


def _trained(spec):
    for part in range(CONFIG.parts):
        TeacherGroup(spec).train(CONFIG.members(part))
    return spec


def _files(spec):
    paths = spec.workspace.root.glob("*.safetensors")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def _state(spec, teachers):
    return {name: tensor.numpy().tobytes() for name, tensor in spec.workspace.read(teachers).items()}


def test_training_twice_leaves_the_files_untouched_and_a_lost_one_is_rebuilt_byte_for_byte(spec):
    TeacherGroup(spec).train(range(3))
    before = _files(spec)
    for piece in (range(3), range(1), range(1, 3)):  # dealt out in another way, they are the same teachers
        TeacherGroup(spec).train(piece)
    assert _files(spec) == before
    ((name, (stamp, content)),) = before.items()
    (spec.workspace.root / name).unlink()
    TeacherGroup(spec).train(range(3))
    assert _files(spec).keys() == {name}
    assert _files(spec)[name][1] == content
    assert _files(spec)[name][0] != stamp


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_no_size_of_a_piece_changes_a_bit(pieces, spec, question, monkeypatch):
    monkeypatch.setattr("rayprivacy.teachers.spec.PIECES", pieces)
    _trained(spec)
    whole, group = _state(spec, range(5)), TeacherGroup(spec)
    group.vote(range(5), question)
    other = replace(spec, workspace=Workspace(spec.workspace.root.with_name("others"), "recipe"))
    other.workspace.prepare()
    for piece in training_pieces(CONFIG, 1):
        TeacherGroup(other).train(piece)
    assert _state(other, range(5)) == whole
    asked = TeacherGroup(other)
    for piece in voting_pieces(CONFIG, 1):
        asked.vote(piece, question)
    assert np.array_equal(asked.collect(question.digest).sums, group.collect(question.digest).sums)


def test_only_teachers_that_are_missing_are_trained_and_no_trunk_is_run(spec, monkeypatch):
    monkeypatch.setattr("rayprivacy.models.features.encode_rows", lambda *_, **__: pytest.fail("the trunk was called"))
    TeacherGroup(spec).train(range(1, 2))
    before = _files(spec)
    TeacherGroup(spec).train(range(3))
    after = _files(spec)
    assert before.items() < after.items()
    (added,) = after.keys() - before.keys()
    assert len(load_file(spec.workspace.root / added)["filled"]) == 2


def test_teachers_learn_from_the_documents_of_their_own_shard(spec, tiny_backbone):
    TeacherGroup(spec).train(range(3))
    documents = [
        [tiny_backbone.document(text, 20) for text in USERS.get(user, [])] for user in ("user-0", "user-3", "")
    ]
    shards = [encode(tiny_backbone, each, 32, 4) for each in documents]
    expected, found = kind_for(spec, tiny_backbone).train(shards), spec.workspace.read(range(3))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert found["filled"].tolist() == [True, True, False]


def test_one_changed_user_changes_one_teacher(spec, encode_all):
    TeacherGroup(spec).train(range(3))
    before = spec.workspace.read(range(3))["matrix"]
    encode_all(spec, USERS | {"user-3": ["something else altogether", "and more of it " * 50]})
    TeacherGroup(spec).train(range(3))
    after = spec.workspace.read(range(3))["matrix"]
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])
    assert torch.equal(after[2], torch.zeros(16, 16)), "shard 2 has nobody"


def test_votes_come_from_the_files_and_do_not_depend_on_grouping(spec, queries, monkeypatch):
    many = CONFIG.model_copy(update={"count": 25, "stack": 7})
    spec = replace(spec, teachers=many)
    draw = torch.Generator().manual_seed(4)
    state = {"matrix": torch.randn(25, 16, 16, generator=draw) / 5, "filled": torch.arange(25) % 4 > 0}
    spec.workspace.write(dict.fromkeys(range(25), "source"), state)
    question = Question.of(queries, replace(MECHANISM, teachers=25))
    sums = []
    for pieces in (1, 2, 25):
        monkeypatch.setattr("rayprivacy.teachers.spec.PIECES", pieces)
        total = VoteTotal(len(queries), MECHANISM.candidates)
        for piece in voting_pieces(many, 1):
            group = TeacherGroup(spec)
            group.vote(piece, question)
            assert group.collect(question.digest).teachers == tuple(piece)
            total.add(group.collect(question.digest))
        assert total.manifest == tuple(range(25))
        sums.append(total.sums)
    assert sums[0].dtype == np.int64
    assert all(np.array_equal(one, sums[0]) for one in sums)


def test_a_piece_is_in_a_sum_once_however_often_it_is_asked_for(spec, question):
    group = TeacherGroup(_trained(spec))
    for _ in range(3):
        group.vote(range(5), pickle.loads(pickle.dumps(question)))
    once = TeacherGroup(spec)
    once.vote(range(5), question)
    for _ in range(2):
        assert np.array_equal(group.collect(question.digest).sums, once.collect(question.digest).sums)
    assert group.collect(question.digest).teachers == (0, 1, 2, 3, 4)


def test_another_question_starts_another_sum(spec, question, queries):
    group = TeacherGroup(_trained(spec))
    others = [
        Question.of(queries, replace(MECHANISM, clip=0.3)),
        Question.of(replace(queries, candidates=queries.candidates.flip(1)), MECHANISM),
        Question.of(queries.rows(0, 32), MECHANISM),
        Question.of(queries, MECHANISM, Path("rows")),
        Question.of(queries, MECHANISM, asking=1),  # the same one, asked again
    ]
    assert len({other.digest for other in [question, *others]}) == 6
    assert Question.of(queries, MECHANISM).digest == question.digest
    for other in others:
        group.vote(range(5), question)
        group.vote(range(3), other)
        assert group.collect(other.digest).teachers == (0, 1, 2)
        with pytest.raises(ReleaseError, match="another question"):
            group.collect(question.digest)


def test_a_vote_without_training_and_training_without_features_are_errors(spec, question):
    TeacherGroup(spec).train(range(3))
    spec.store.clear()
    spec.store.prepare()
    with pytest.raises(ShardError, match="cached features"):
        TeacherGroup(spec).train(range(3, 5))
    with pytest.raises(ShardError, match=r"^teacher 3 is not on disk: run again with --resume\.$"):
        TeacherGroup(spec).vote(range(5), question)
