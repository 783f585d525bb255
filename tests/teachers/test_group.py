"""What an actor leaves on disk and hands out: trained once, rebuilt byte for byte, and votes only as one sum."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rayprivacy.core.errors import ReleaseError, ShardError
from rayprivacy.models.adapters import Basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, Queries, encode
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.encoding import encode_part
from rayprivacy.teachers.group import TeacherGroup, kind_for
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec, training_pieces, voting_pieces
from rayprivacy.teachers.votes import Question, VoteTotal
from rayprivacy.teachers.workspace import Workspace

pytestmark = pytest.mark.usefixtures("one_thread")  # a group takes one thread for its process
CONFIG = TeachersConfig(count=5, max_tokens=20, row_tokens=32, max_rows=4, rank=16, max_steps=2, batch=8, stack=3)
TEXTS = {0: ["the sun is out", "i like bread"], 1: ["play cards at home"], 3: ["take the early train " * 20]}
TEXTS[4] = ["hello", "", "so nice"]
WHOLE = {(shard, f"user-{shard}"): texts for shard, texts in TEXTS.items()}
MECHANISM = VoteMechanism(queries=40, candidates=8, teachers=5, sigma=1.0)


@pytest.fixture
def encode_all(tiny_backbone: Backbone, write_parts: Any) -> Callable[[GroupSpec, Any], GroupSpec]:
    def encoded(spec: GroupSpec, texts: Any) -> GroupSpec:
        write_parts(spec, texts)
        for part in range(CONFIG.parts):
            encode_part(spec, part, tiny_backbone)
        return spec

    return encoded


@pytest.fixture
def spec(spec_of: Any, encode_all: Any, tiny_basis: Basis) -> GroupSpec:
    found = spec_of(CONFIG, "recipe-of-the-states")
    tensors = {name: getattr(tiny_basis, name).contiguous() for name in ("inward", "outward", "shortlist")}
    save_file(tensors, found.basis)
    save_file({"matrix": torch.eye(16) / 50}, found.warm)
    return encode_all(found, WHOLE)


@pytest.fixture
def queries(tiny_features: Features, asked: Any) -> Queries:
    return asked(tiny_features.hidden[:40].float(), torch.zeros(40, 2).long())


@pytest.fixture
def question(queries: Queries) -> Question:
    return Question.of(queries, MECHANISM)


def _trained(spec: GroupSpec) -> GroupSpec:
    for part in range(CONFIG.parts):
        TeacherGroup(spec).train(CONFIG.members(part))
    return spec


def _files(spec: GroupSpec) -> dict[str, tuple[int, bytes]]:
    paths = spec.workspace.root.glob("*.safetensors")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def _state(spec: GroupSpec, teachers: range) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in spec.workspace.read(teachers).items()}


def test_training_twice_leaves_the_files_untouched_and_a_lost_one_is_rebuilt_byte_for_byte(spec: GroupSpec) -> None:
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
def test_no_size_of_a_piece_changes_a_bit(
    pieces: int, spec: GroupSpec, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_only_teachers_that_are_missing_are_trained_and_no_trunk_is_run(spec: GroupSpec, monkeypatch: Any) -> None:
    trunk = "transformers.models.llama.modeling_llama.LlamaModel.forward"
    monkeypatch.setattr(trunk, lambda *_, **__: pytest.fail("the trunk was called"))
    TeacherGroup(spec).train(range(1, 2))
    before = _files(spec)
    TeacherGroup(spec).train(range(3))
    after = _files(spec)
    assert before.items() < after.items()
    (added,) = after.keys() - before.keys()
    assert len(load_file(spec.workspace.root / added)["filled"]) == 2


def test_teachers_learn_from_the_documents_of_their_own_shard(spec: GroupSpec, tiny_backbone: Backbone) -> None:
    TeacherGroup(spec).train(range(3))
    shards = [
        encode(tiny_backbone, [tiny_backbone.document(text, 20) for text in TEXTS.get(shard, [])], 32, 4)
        for shard in CONFIG.members(0)
    ]
    expected, found = kind_for(spec, tiny_backbone).train(shards), spec.workspace.read(range(3))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert found["filled"].tolist() == [True, True, False]


def test_one_changed_user_changes_one_teacher(spec: GroupSpec, encode_all: Any) -> None:
    TeacherGroup(spec).train(range(3))
    before = spec.workspace.read(range(3))["matrix"]
    encode_all(spec, WHOLE | {(1, "user-1"): ["something else altogether", "and more of it " * 50]})
    TeacherGroup(spec).train(range(3))
    after = spec.workspace.read(range(3))["matrix"]
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])
    assert torch.equal(after[2], torch.zeros(16, 16)), "shard 2 has nobody"


def test_votes_come_from_the_files_and_do_not_depend_on_grouping(
    spec: GroupSpec, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_piece_is_in_a_sum_once_however_often_it_is_asked_for(spec: GroupSpec, question: Question) -> None:
    group = TeacherGroup(_trained(spec))
    for _ in range(3):
        group.vote(range(5), pickle.loads(pickle.dumps(question)))
    once = TeacherGroup(spec)
    once.vote(range(5), question)
    for _ in range(2):
        assert np.array_equal(group.collect(question.digest).sums, once.collect(question.digest).sums)
    assert group.collect(question.digest).teachers == (0, 1, 2, 3, 4)


def test_another_question_starts_another_sum(spec: GroupSpec, question: Question, queries: Queries) -> None:
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


def test_teachers_without_users_vote_the_centre(
    spec: GroupSpec, queries: Queries, question: Question, encode_all: Any
) -> None:
    group = TeacherGroup(_trained(encode_all(spec, {})))
    group.vote(range(5), question)
    steps = np.rint(queries.centre.numpy() * np.float32(SCALE)).astype(np.int64)
    assert np.array_equal(group.collect(question.digest).sums, 5 * steps)


def test_a_vote_without_training_and_training_without_features_are_errors(spec: GroupSpec, question: Question) -> None:
    TeacherGroup(spec).train(range(3))
    spec.store.clear()
    spec.store.prepare()
    with pytest.raises(ShardError, match="cached features"):
        TeacherGroup(spec).train(range(3, 5))
    with pytest.raises(ShardError, match=r"^teacher 3 is not on disk: run again with --resume\.$"):
        TeacherGroup(spec).vote(range(5), question)
