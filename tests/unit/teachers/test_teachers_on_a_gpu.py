"""On a GPU, too, a teacher depends on its own shard alone, to the last bit. Left out without CUDA."""

import math

import numpy as np
import pytest
import torch

from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import Encoded, encode
from rayprivacy.models.layers import cut_below, lower_trunk
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.group import prepared_device
from rayprivacy.teachers.head_kinds import TeacherKind, on
from rayprivacy.teachers.lora_kind import LoraKind
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.square_kind import SquareKind
from rayprivacy.teachers.votes import summed_votes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROW, TEACHERS, CANDIDATES, QUERIES = 64, 4, 8, 70


@pytest.fixture(scope="module")
def gpu():
    threads, before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield prepared_device(gpu=True)
    torch.use_deterministic_algorithms(before)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def backbone(request, tiny_base, gpu):
    return load_backbone(ModelConfig(base=str(tiny_base), dtype=request.param), gpu)


def _documents(backbone, texts):
    return [backbone.document(text, 40) for text in texts]


def _config(name):
    deep = name == "lora"
    return TeachersConfig(
        count=TEACHERS, kind=name, layers=1 if deep else None, rank=4 if deep else 16, row_tokens=ROW,
        batch=2 * ROW if deep else 16, max_steps=20, learning_rate=2e-2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def public_rows(backbone, public_sentences):
    return encode(backbone, _documents(backbone, public_sentences * 5), ROW, 12)


@pytest.fixture(scope="module")
def queries(public_rows, asked):
    context = public_rows.predicts.nonzero()
    context = context[torch.randperm(len(context), generator=torch.Generator().manual_seed(5))[:QUERIES]]
    return asked(public_rows.hidden[context[:, 0], context[:, 1]].float(), context)


class Side:
    """A kind of teacher on a device, and four shards of different length there; the third is empty."""

    def __init__(self, name, backbone, rows, basis, sentences):
        device, config = backbone.model.device, _config(name)
        self.name, self.device, trunk = name, device, None
        if name == "square":
            there = Basis(*(getattr(basis, part).to(device) for part in ("inward", "outward", "shortlist")))
            warm = HeadAdapter(there, (torch.eye(16) / 50).to(device))
            self.kind: TeacherKind = SquareKind(config, warm, backbone.head)
        else:
            self.kind = LoraKind(backbone, config, rows.to(device))
            trunk = lower_trunk(backbone, cut_below(backbone, config.layers))
        texts = [_documents(backbone, sentences[first:last]) for first, last in ((0, 1), (1, 6), (6, 8))]
        one, two, four = (encode(backbone, each, ROW, 8, trunk).to(device) for each in texts)
        self.shards = [one, two, Encoded.empty(ROW, 64).to(device), four]


@pytest.fixture(scope="module", params=["square", "lora"])
def side(request, backbone, public_rows, tiny_basis, public_sentences):
    return Side(request.param, backbone, public_rows, tiny_basis, public_sentences)


def test_states_are_those_of_the_cpu(backbone, tiny_base, public_sentences):
    plain = load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))
    expected = encode(plain, _documents(plain, public_sentences[:4]), ROW, 8).hidden.float()
    found = encode(backbone, _documents(backbone, public_sentences[:4]), ROW, 8).hidden
    assert found.device.type == "cpu"
    assert (found.float() - expected).norm() <= 0.02 * expected.norm()
    again = encode(backbone, _documents(backbone, public_sentences[:4]), ROW, 8).hidden
    assert torch.equal(found, again)


def test_a_teacher_does_not_depend_on_the_other_shards(side):
    trained = side.kind.train(side.shards)
    assert trained["filled"].tolist() == [True, True, False, True]

    def ruined(shard, value):
        return Encoded(shard.ids, shard.segment, torch.full_like(shard.hidden, value))

    for teacher in range(TEACHERS):
        ruins = ([ruined(shard, value) for shard in side.shards] for value in (math.nan, 1e9))
        for others in (side.shards, side.shards[::-1], *ruins):
            stack = [*others]
            stack[teacher] = side.shards[teacher]
            again = side.kind.train(stack)
            assert all(torch.equal(again[part][teacher], trained[part][teacher]) for part in trained)


def test_votes_are_bounded_and_do_not_depend_on_the_neighbours(side, queries):
    clip = 0.1
    mechanism = VoteMechanism(queries=QUERIES, candidates=CANDIDATES, teachers=TEACHERS, sigma=1.0, clip=clip)
    asked, trained = queries.to(side.device), on(side.kind.train(side.shards), side.device)
    whole = summed_votes(side.kind, trained, asked, mechanism)
    assert np.array_equal(whole, summed_votes(side.kind, trained, asked, mechanism))
    assert np.abs(whole).max() > 1000
    for teacher in (0, 1, 3):
        changed = {part: tensor.clone() for part, tensor in trained.items()}
        for part in changed:
            if part != "filled":
                changed[part][teacher] = math.nan
        moved = np.linalg.norm(summed_votes(side.kind, changed, asked, mechanism) - whole, axis=1)
        assert moved.max() <= 2 * (clip * SCALE + CANDIDATES)


def test_answers_are_those_of_the_cpu(backbone, tiny_base, public_rows, tiny_basis, public_sentences, queries, side):
    if backbone.model.dtype != torch.float32:
        return
    plain = load_backbone(ModelConfig(base=str(tiny_base), dtype="float32"))
    other = Side(side.name, plain, public_rows, tiny_basis, public_sentences)
    answers = []
    for each in (side, other):
        asked = queries.to(each.device)
        answers.append(torch.cat(list(each.kind.answers(each.kind.train(each.shards), asked))).cpu())
    assert (answers[0] - answers[1]).abs().max() <= 0.02
