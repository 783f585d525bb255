"""The update of a tagger by an engine, without noise, against a plain loop over rows; on one rank and on two.

The loop knows neither batches nor padding: one row at a time, in float64, with the losses written out by hand.
"""

import functools
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from changing_noise import changing
from engine_cases import EXHAUSTIVE, RATE, SGD, clipped_sum, equal, error, lengths_of, some
from small_tagger import INTENTS, SLOTS, labelled

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.clipping import Clipping, micro_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import own_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.methods.edp_sgd.reading import TaggedRows
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.tagging.loss import TaggerLoss
from rayprivacy.tagging.settings import TaggerConfig, Tags

TAGS, TOKENS = Tags(INTENTS, SLOTS), 60
LOSS = TaggerLoss(len(TAGS.all_intents), len(TAGS.names))
TEXTS = ("you like soup", "we go home", "the cat sat on my mat", "bread", "soup and bread at home you know", "go")
GROUPS = (((0,), (1, 2)), ((3,),), ((4, 5),))  # users of micro-batches, each with some texts
FEW = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Tagger:
    """One step of an engine."""

    base: str  # a folder or a name
    lora: bool = False
    crf: bool = True
    layers: int | None = None
    zero: int | None = None  # the engine; None is plain PyTorch
    micro: bool = True  # clip the means of GROUPS, and not the users
    norm: float = 1.0  # C
    split: tuple[int, ...] = (3,)  # how many groups each rank holds


@functools.cache
def _backbone(base, crf, layers):
    shape = {"layers": layers, "crf": crf, "intents": INTENTS, "slots": SLOTS}
    return load_backbone(TaggerConfig(base=base, dtype="float32", **shape))


def _fresh(case):
    base = _backbone(case.base, case.crf, case.layers)
    rows = [{"text": text, **dict(zip(("intent", "slots"), labelled(text), strict=True))} for text in TEXTS]
    documents = TaggedRows(TAGS, ("intent", "slots"), TOKENS)(rows, base, 0)
    model = trainable(base, AdapterConfig(kind="lora", rank=4) if case.lora else AdapterConfig(kind="full"))
    return base, model, [[[documents[at] for at in user] for user in group] for group in GROUPS]


def taken(case):
    """The trained parameters after one step without noise."""
    base, model, groups = _fresh(case)
    held, shape = len(GROUPS), {"max_tokens": TOKENS, "optimizer": SGD, "clipping_norm": case.norm}
    training = DpSgdConfig(expected_batch=held, steps=10, microbatches=held if case.micro else None, **shape)
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((0.0,) * 10, case.norm), held)
    losses = functools.partial(own_losses, loss=LOSS)
    engine = make_engine(model, training, noise, EngineConfig(zero=case.zero, batch_tokens=64), losses)
    here = collectives.rank()
    mine = groups[sum(case.split[:here]) :][: case.split[here]]
    users = [user for group in mine for user in group]
    batches = micro_batches(mine, 24, base.end) if case.micro else physical_batches(users, 64, base.end)
    engine.step(0, batches)
    return {name: each.numpy() for name, each in engine.state_dict().items()}


def _by_hand(case):
    """The gradients of users, or the means of micro-batches, float64."""
    _, model, groups = _fresh(case)
    named = {name: each for name, each in model.double().named_parameters() if each.requires_grad}
    found = []
    for users in groups if case.micro else [[user] for group in groups for user in group]:
        loss = sum(_user_loss(model, user) for user in users) / len(users)
        found.append(dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))
    return found


def _user_loss(model, documents):
    tokens = [len(each.ids) - 1 for each in documents]
    return sum(_row_loss(model, each) * count / sum(tokens) for each, count in zip(documents, tokens, strict=True))


def _row_loss(model, document):
    tokens, codes = (torch.from_numpy(each).long() for each in divmod(document.ids, LOSS.labels + 1))
    mask = {"attention_mask": torch.ones_like(tokens[None], dtype=torch.bool)} if hasattr(model, "lstm") else {}
    logits = model(input_ids=tokens[None], **mask).logits[0]
    intent = F.cross_entropy(logits[:, : LOSS.intents].mean(0), codes[0] - 1)
    places = torch.nonzero(codes[1:]).flatten() + 1
    emissions, labels = logits[places, LOSS.intents :], codes[places] - 1 - LOSS.intents
    if not hasattr(model, "crf"):
        return intent + F.cross_entropy(emissions, labels)
    transitions, before = model.crf.transitions.weight, -1
    score, alpha = 0.0, transitions[-1] + emissions[0]
    for at, label in enumerate(labels.tolist()):
        score, before = score + transitions[before, label] + emissions[at, label], label
        if at:
            reached = [(alpha + transitions[:-1, to]).logsumexp(0) for to in range(len(alpha))]
            alpha = torch.stack(reached) + emissions[at]
    return intent + (alpha.logsumexp(0) - score) / len(labels)


def _biting(case):
    """The case with a clipping norm that some gradients exceed."""
    return replace(case, norm=float(lengths_of(_by_hand(case)).median()))


def _wrong(case, after):
    start = {name: each.detach().numpy().astype(float) for name, each in _fresh(case)[1].named_parameters()}
    found = {name: (start[name] - each) * len(GROUPS) / RATE for name, each in after.items()}
    return error(found, clipped_sum(_by_hand(case), Clipping(case.norm)))


@FEW
@pytest.mark.parametrize("micro", [True, False], ids=["micro-batches", "users"])
@pytest.mark.parametrize("kind", ["bert", "bert-crf", "llama-lora-crf"])
def test_an_update_is_that_of_a_plain_loop(tiny_bert, tiny_base, kind, micro):
    base, lora = (tiny_base, True) if kind.startswith("llama") else (tiny_bert, False)
    case = _biting(Tagger(str(base), lora, crf=kind.endswith("crf"), micro=micro))
    assert _wrong(case, taken(case)) < 1e-6


@FEW
def test_an_update_of_the_lstm_is_that_of_a_plain_loop():
    case = _biting(Tagger("bilstm"))
    assert _wrong(case, taken(case)) < 1e-6
    with pytest.raises(ConfigError, match="modules of kind Conv1d, LSTM own trainable parameters and have no rule"):
        taken(replace(case, micro=False))


@FEW
@EXHAUSTIVE
def test_an_update_of_the_real_encoder_is_that_of_a_plain_loop():
    """Four layers of float32 round by about as much as one part in a million."""
    case = _biting(Tagger("minilm-l6", layers=4))
    assert _wrong(case, taken(case)) < 2e-6


@pytest.mark.parametrize("zero", some([None, 2, 3], 2))
def test_two_ranks_agree_with_one(pair, tiny_bert, tiny_base, zero):
    cases = [Tagger(str(tiny_bert), split=(1, 2)), Tagger(str(tiny_base), lora=True, split=(3, 0))]
    for case in (*cases, *([] if zero == 3 else [Tagger("bilstm", split=(2, 1))])):
        case = _biting(replace(case, zero=zero, micro=zero != 3))
        first, second = pair.run(taken, case)
        assert _wrong(case, first) < 1e-6
        assert equal(first, second)
