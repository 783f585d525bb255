"""What tests of engines run, in their own process or on ranks: tiny models, private units, and a slow exact reference.

Units are tiny random documents. `taken` runs steps with a real engine. `exact` computes the clipped sum of the same
units one at a time, in float64, with torch.autograd alone.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from changing_noise import changing
from torch import Tensor

from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import MicroBatch, micro_batches
from rayprivacy.dpsgd.engines import zero as deepspeed_setup
from rayprivacy.dpsgd.engines.engine import Engine, StepNoise, make_engine
from rayprivacy.dpsgd.engines.zero import ZeroEngine
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.release.step_mechanism import NoisySteps

VOCABULARY, RATE, BATCH, PAD = 97, 1e3, 4.0, 96  # the rate is so large that rounding of the weights does not matter
SGD = OptimizerConfig(kind="sgd", learning_rate=RATE, schedule="constant")
GROUPS = ((0, 1, 2), (3, 4), (5, 6, 7), (8,))  # units of micro-batches
ADAM = OptimizerConfig(learning_rate=1e-3, schedule="linear", weight_decay=0.1)

# Tiny limits, so that tiny models fill several buckets, are really partitioned, and form several sub-groups.
deepspeed_setup.LIMITS.update(reduce_bucket_size=6000, allgather_bucket_size=6000)
deepspeed_setup.STAGE_3_LIMITS.update(
    stage3_param_persistence_threshold=40, stage3_prefetch_bucket_size=6000, sub_group_size=7000
)


@dataclass(frozen=True)
class Case:
    """One run of an engine.

    Attributes:
        kind: of model, see `tiny_model`.
        zero, offload: the engine; None is plain PyTorch.
        splits: for each step, how many of the units each rank holds; further ranks hold none.
        tokens: of a physical batch, for each rank.
        norm: clipping norm C.
        sigma: noise std / C.
        sigmas: those of steps 0, 1, ..., where they differ.
        bands: steps in a row that share noise.
        optimizer: of the run.
        save_at, load_from: a folder to save to after the last step, or to load before the first.
        first: number of the first step.
        seeds: of the model's weights, for each rank.
        half: the model's parameters are bfloat16.
        redacted: for steps 0, 1, ... whether a schedule lists them as redacted; later ones are noisy.
        light: noise multiplier of the redacted steps.
        full: steps that read full text; by default those that are not redacted.
        gradients: how they are clipped.
        scales: of the parameters, by name.
        differ: ranks differ in their scales.
        micro: clip the means of GROUPS, of which each rank has as many as `splits` says; noise falls by 1 / (1 + t).
    """

    kind: str
    zero: int | None = None
    offload: bool = False
    splits: tuple[tuple[int, ...], ...] = ((5, 4),)
    tokens: tuple[int, ...] = (64, 64)
    norm: float = 1.0
    sigma: float = 0.0
    sigmas: tuple[float, ...] = ()
    bands: int = 1
    optimizer: OptimizerConfig = SGD
    save_at: Path | None = None
    load_from: Path | None = None
    first: int = 0
    seeds: tuple[int, ...] = (0, 0)
    half: bool = False
    redacted: tuple[bool, ...] = ()
    light: float = 0.0
    full: tuple[int, ...] | None = None
    gradients: Literal["bookkeeping", "opacus"] = "bookkeeping"
    scales: tuple[tuple[str, float], ...] = ()
    differ: bool = False
    micro: bool = False


def tiny_model(kind: str, seed: int = 0) -> Any:
    """gpt2, llama (grouped heads) or bert, all tied; behind it '_untied', or '_lora' for a frozen one with LoRA."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    name, _, variant = kind.partition("_")
    size: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    size["tie_word_embeddings"] = variant != "untied"
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    if name == "gpt2":
        config = transformers.GPT2Config(**size, n_positions=64, n_embd=24, n_layer=2, n_head=2, **drop)
        model: Any = transformers.GPT2LMHeadModel(config)
    elif name == "llama":
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
        config = transformers.LlamaConfig(**size, hidden_size=24, intermediate_size=40, **heads)
        model = transformers.LlamaForCausalLM(config)
    else:
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
        config = transformers.BertConfig(**size, hidden_size=24, intermediate_size=40, num_hidden_layers=2, **quiet)
        model = transformers.BertForMaskedLM(config)
    if variant == "lora":
        from peft import LoraConfig, get_peft_model

        fan = {"fan_in_fan_out": name == "gpt2"}
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **fan))
    return model.train()


def losses(model: Any, batch: Batch, half: bool = False) -> Tensor:
    """Weighted negative log-likelihoods of rows: in the model's own precision, or under bfloat16 autocast."""
    positions = torch.arange(batch.ids.shape[1]).expand_as(batch.ids).contiguous()
    inputs = {"input_ids": batch.ids, "position_ids": positions}
    if model.config.model_type == "bert":  # looks both ways, so it must be told what is padding
        inputs |= {"token_type_ids": torch.zeros_like(batch.ids), "attention_mask": (batch.ids != PAD).long()}
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = model(**inputs).logits[:, :-1]
    logs = logits.log_softmax(-1, dtype=max(logits.dtype, torch.float32, key=lambda kind: kind.itemsize))
    nll = -logs.gather(2, batch.ids[:, 1:, None]).squeeze(2)
    return (nll * batch.weights[:, 1:]).sum(1)


@functools.cache
def units(count: int = 9) -> list[list[Document]]:
    """Users with one or two documents of 3 to 12 tokens, many of them repeated."""
    random = np.random.default_rng(7)
    found = []
    for user in range(count):
        lengths = random.integers(3, 13, size=1 + user % 2)
        found.append([Document(random.integers(0, 20, n).astype(np.int32), int(n > 5)) for n in lengths])
    return found


@functools.cache
def _gradients(kind: str) -> list[dict[str, Tensor]]:
    """The gradient of each unit by itself, float64: what takes the time of `exact`."""
    model = tiny_model(kind).double()
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    found = []
    for unit in units():
        (batch,) = physical_batches([unit], 10_000, PAD)
        gradients = torch.autograd.grad(losses(model, batch).sum(), parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        found.append(dict(zip(names, gradients, strict=True)))
    return found


@functools.cache
def exact(kind: str, norm: float, users: int = 9) -> tuple[dict[str, Any], list[float]]:
    """Sum of clipped gradients, float64, and the norms before clipping."""
    each = _gradients(kind)
    norms = [float(torch.sqrt(sum(g.square().sum() for g in gradients.values()))) for gradients in each[:users]]
    total = {name: torch.zeros_like(gradient) for name, gradient in each[0].items()}
    for gradients, length in zip(each, norms, strict=False):
        for name, gradient in gradients.items():
            total[name] += gradient * min(1.0, norm / length)
    return {name: summed.numpy() for name, summed in total.items()}, norms


def _scales(case: Case) -> dict[str, float]:
    factor = 1 + collectives.rank() if case.differ else 1
    return {name: scale / factor for name, scale in case.scales}


def made(case: Case) -> Engine:
    """The engine of a case, on this rank."""
    steps = 10
    training = DpSgdConfig(
        expected_batch=BATCH,
        steps=steps,
        clipping_norm=case.norm,
        noise_multiplier=1.0,
        optimizer=case.optimizer,
        microbatches=int(BATCH) if case.micro else None,
    )
    mechanism = changing(case.sigmas or (case.sigma,) * steps, case.norm)
    if case.bands > 1:
        mechanism = NoisySteps(0.5, case.sigma, case.norm, steps, bands=case.bands)
    if case.redacted:
        listed = (*case.redacted, *(False,) * (steps - len(case.redacted)))
        mechanism = NoisySteps(0.5, case.sigma, case.norm, steps, redacted=listed, policy="p", light=case.light)
    if case.micro and case.sigma:
        falling = NoiseSchedule("linear", tau=1.0)
        shape = {"schedule": falling, "chunk": 1, "microbatches": int(BATCH)}
        mechanism = NoisySteps(0.5, case.sigma, case.norm, steps, **shape)
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), mechanism, BATCH, _scales(case))
    model = tiny_model(case.kind, case.seeds[collectives.rank()])
    engine = EngineConfig(zero=case.zero, offload=case.offload, gradients=case.gradients)
    own_losses = functools.partial(losses, half=case.half)
    return make_engine(model.bfloat16() if case.half else model, training, noise, engine, own_losses, case.half)


@functools.cache
def exact_means(kind: str, norm: float) -> dict[str, Any]:
    """Sum of the clipped mean gradients of GROUPS, float64."""
    total = {name: torch.zeros_like(gradient) for name, gradient in _gradients(kind)[0].items()}
    for group in GROUPS:
        means = {name: sum(_gradients(kind)[unit][name] for unit in group) / len(group) for name in total}
        length = float(torch.sqrt(sum(mean.square().sum() for mean in means.values())))
        for name, mean in means.items():
            total[name] += mean * min(1.0, norm / length)
    return {name: summed.numpy() for name, summed in total.items()}


def mine(case: Case, split: tuple[int, ...], step: int = 0) -> list[Batch] | list[MicroBatch]:
    """This rank's physical batches, or micro-batches."""
    ends = np.cumsum([0, *split, *[0] * collectives.world()])
    here = collectives.rank()
    if case.micro:
        held = [[units()[unit] for unit in group] for group in GROUPS[ends[here] : ends[here + 1]]]
        return micro_batches(held, case.tokens[here], PAD)
    redacted = any(case.redacted[step : step + 1]) if case.full is None else step not in case.full
    own = units()[ends[here] : ends[here + 1]]
    own = [[replace(document, redacted=redacted) for document in unit] for unit in own]
    return physical_batches(own, case.tokens[here], PAD)


def taken(case: Case) -> dict[str, Any]:
    """Trainable parameters after the steps of a case."""
    engine = made(case)
    if case.load_from:
        engine.load(case.load_from)
    for step, split in enumerate(case.splits, start=case.first):
        engine.step(step, mine(case, split, step))
    if case.save_at:
        engine.save(case.save_at)
    return {name: tensor.numpy() for name, tensor in engine.state_dict().items()}


def refused(case: Case) -> str:
    """Kind and sentence of the error that a case ends with, or nothing."""
    try:
        taken(case)
    except RayPrivacyError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def before(kind: str) -> dict[str, Any]:
    """Trainable parameters of a fresh model."""
    return {name: p.detach().numpy() for name, p in tiny_model(kind).named_parameters() if p.requires_grad}


def moved(kind: str, after: dict[str, Any]) -> dict[str, Any]:
    """The gradient sums that an update has taken, from the parameters after one step of SGD."""
    return {name: (start.astype(float) - after[name]) * BATCH / RATE for name, start in before(kind).items()}


def error(kind: str, after: dict[str, Any], truth: dict[str, Any]) -> float:
    """Relative L2 error of an update."""
    found = moved(kind, after)
    assert set(after) == set(truth)
    wrong, length = (
        np.sqrt(sum((each**2).sum() for each in parts))
        for parts in ([found[name] - truth[name] for name in truth], truth.values())
    )
    return float(wrong / max(length, 1e-9))


def apart(after: dict[str, Any], expected: dict[str, Any], kind: str = "gpt2") -> float:
    """How far two runs lie apart, as a share of the way that the second one has gone."""
    start = before(kind)
    gap, way = (sum(((expected[name] - other[name]) ** 2).sum() for name in start) for other in (after, start))
    return float(np.sqrt(gap / way))


def fragments(case: Case) -> list[tuple[str, int, int]]:
    """What this rank's optimizer owns."""
    return [(held.name, held.start, held.count) for held in made(case).fragments()]


class Overflowing:
    """Clipped gradients that are infinite: what no optimizer may notice."""

    def __init__(self, model: Any) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def __call__(self, losses: Any, rows_per_unit: int, live: bool = True) -> Any:
        losses()
        shape = {each: getattr(each, "ds_shape", each.shape) for each in self.parameters}
        return {each: lambda each=each: torch.full(shape[each], float("inf")) for each in self.parameters}


def overflowed(zero: int, offload: bool) -> float:
    """Share of weights that infinite gradients have reached, after a step and another one without users."""
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((1.0,) * 10), BATCH)
    model = tiny_model("gpt2")
    engine = ZeroEngine(model, Overflowing(model), noise, Schedule(SGD, 10), losses, zero, offload)
    engine.step(0, mine(Case("gpt2"), (5, 4)))
    weights = torch.cat([tensor.flatten() for tensor in engine.state_dict().values()])
    return float((~weights.isfinite()).float().mean())


def told_to_step(case: Case) -> str:
    """What DeepSpeed's own step says when no step is open."""
    engine: Any = made(case)
    try:
        engine._take(mine(case, case.splits[0]) if case.zero != 3 else [])
    except RayPrivacyError as error:
        return f"{type(error).__name__}: {error}"
    return ""
