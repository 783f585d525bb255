"""What tests of engines run with taggers, in their own process or on ranks, and the same update by a slow plain loop.

The loop knows neither batches nor padding: one row at a time, in float64, with the losses written out by hand.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from changing_noise import changing
from small_tagger import INTENTS, SLOTS, labelled

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.clipping import micro_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import own_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.methods.edp_sgd.reading import TaggedRows
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.tagging.loss import TaggerLoss
from rayprivacy.tagging.settings import TaggerConfig, Tags

TAGS, TOKENS, RATE = Tags(INTENTS, SLOTS), 60, 1e3  # so large that rounding of the weights does not matter
LOSS = TaggerLoss(len(TAGS.all_intents), len(TAGS.names))
TEXTS = ("you like soup", "we go home", "the cat sat on my mat", "bread", "soup and bread at home you know", "go")
GROUPS = (((0,), (1, 2)), ((3,),), ((4, 5),))  # users of micro-batches, each with some texts
SGD = OptimizerConfig(kind="sgd", learning_rate=RATE, schedule="constant")


@dataclass(frozen=True)
class Case:
    """One step of an engine.

    Attributes:
        base: folder of the base, or a name.
        lora, crf, layers: of the tagger.
        zero: the engine; None is plain PyTorch.
        micro: clip the means of GROUPS, and not the users.
        norm: clipping norm C.
        split: how many groups each rank holds.
    """

    base: str
    lora: bool = False
    crf: bool = True
    layers: int | None = None
    zero: int | None = None
    micro: bool = True
    norm: float = 1.0
    split: tuple[int, ...] = (3,)


@functools.cache
def _backbone(base: str, crf: bool, layers: int | None) -> Backbone:
    shape = {"layers": layers, "crf": crf, "intents": INTENTS, "slots": SLOTS}
    return load_backbone(TaggerConfig(base=base, dtype="float32", **shape))


def _fresh(case: Case) -> tuple[Backbone, Any]:
    base = _backbone(case.base, case.crf, case.layers)
    return base, trainable(base, AdapterConfig(kind="lora", rank=4) if case.lora else AdapterConfig(kind="full"))


def _documents(base: Backbone) -> list[Document]:
    rows = [{"text": text, **dict(zip(("intent", "slots"), labelled(text), strict=True))} for text in TEXTS]
    return TaggedRows(TAGS, ("intent", "slots"), TOKENS)(rows, base, 0)


def before(case: Case) -> dict[str, Any]:
    """The trained parameters of a fresh model."""
    return {name: each.detach().numpy() for name, each in _fresh(case)[1].named_parameters() if each.requires_grad}


def taken(case: Case) -> dict[str, Any]:
    """The same after one step without noise."""
    base, model = _fresh(case)
    training = DpSgdConfig(
        expected_batch=len(GROUPS),
        steps=10,
        clipping_norm=case.norm,
        optimizer=SGD,
        max_tokens=TOKENS,
        microbatches=len(GROUPS) if case.micro else None,
    )
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((0.0,) * 10, case.norm), len(GROUPS))
    losses = functools.partial(own_losses, loss=LOSS)
    engine = make_engine(model, training, noise, EngineConfig(zero=case.zero), losses)
    engine.step(0, _mine(case, base))
    return {name: each.numpy() for name, each in engine.state_dict().items()}


def _mine(case: Case, base: Backbone) -> Any:
    documents, here = _documents(base), collectives.rank()
    begin = sum(case.split[:here])
    groups = [[[documents[at] for at in user] for user in group] for group in GROUPS]
    held = groups[begin : begin + sum(case.split[here : here + 1])]
    if case.micro:
        return micro_batches(held, 24, base.end)
    return physical_batches([user for group in held for user in group], 64, base.end)


def by_hand(case: Case) -> dict[str, Any]:
    """The sum of clipped gradients of users, or of means of micro-batches, float64."""
    base, model = _fresh(case)
    model, documents = model.double(), _documents(base)
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    total = [torch.zeros_like(each) for each in parameters]
    held = GROUPS if case.micro else [(user,) for group in GROUPS for user in group]
    for group in held:
        loss = sum(_user_loss(model, [documents[at] for at in user]) for user in group) / len(group)
        gradients = torch.autograd.grad(loss, parameters)
        length = float(torch.sqrt(sum(each.square().sum() for each in gradients)))
        for whole, each in zip(total, gradients, strict=True):
            whole += each * min(1.0, case.norm / length)
    return {name: each.numpy() for name, each in zip(names, total, strict=True)}


def _user_loss(model: Any, documents: list[Document]) -> Any:
    tokens = [len(each.ids) - 1 for each in documents]
    return sum(_row_loss(model, each) * count / sum(tokens) for each, count in zip(documents, tokens, strict=True))


def _row_loss(model: Any, document: Document) -> Any:
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
            alpha = (
                torch.stack([(alpha + transitions[:-1, to]).logsumexp(0) for to in range(len(alpha))]) + emissions[at]
            )
    return intent + (alpha.logsumexp(0) - score) / len(labels)
