"""What tests of engines run, in their own process or on ranks: the matrix of engines and models, tiny and private, and
a slow exact reference.

Units are tiny random documents. `taken` runs steps with a real engine, and `wrong` compares its update with the clipped
sum of the same units one at a time, in float64, with torch.autograd alone.
"""

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from changing_noise import changing
from torch import Tensor

from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Batch, Document, Row, physical_batches, rows
from rayprivacy.dpsgd.clipping import Clipping, Lazy, micro_batches
from rayprivacy.dpsgd.engines import zero as deepspeed_setup
from rayprivacy.dpsgd.engines.engine import Engine, StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.models import packing
from rayprivacy.models.norms.parameter import weighted_sum
from rayprivacy.models.norms.terms import Dense, Weights
from rayprivacy.release.step_mechanism import NoisySteps

VOCABULARY, RATE, BATCH, PAD = 97, 1e3, 4.0, 96  # the rate is so large that rounding of the weights does not matter
SGD = OptimizerConfig(kind="sgd", learning_rate=RATE, schedule="constant")
ADAM = OptimizerConfig(learning_rate=1e-3, schedule="linear", weight_decay=0.1)
GROUPS = ((0, 1, 2), (3, 4), (5, 6, 7), (8,))  # units of micro-batches
FULL = ("gpt2", "llama", "bert")
KINDS = (*FULL, "gpt2_lora", "llama_lora", "bert_lora")
ENGINES = {"plain": (None, False)} | {f"zero{stage}": (stage, False) for stage in range(4)}
OFFLOADED = {f"zero{stage}-offload": (stage, True) for stage in (1, 2, 3)}
EXHAUSTIVE = pytest.mark.exhaustive


def some(every: Iterable[Any], *by_day: Any) -> list[Any]:
    """All of them as parameters, or as tuples of these; those not named here have the exhaustive run alone."""
    found = []
    for each in every:
        values, marks = each if isinstance(each, tuple) else (each,), [] if each in by_day else EXHAUSTIVE
        found.append(pytest.param(*values, id="-".join(map(str, values)), marks=marks))
    return found


def engines(*by_day: str, among: Sequence[str] = tuple(ENGINES)) -> Any:
    """A test is run by each of these engines; those that are not named here have the exhaustive run alone."""
    every = ENGINES | OFFLOADED
    cells = [pytest.param(*every[name], id=name, marks=[] if name in by_day else EXHAUSTIVE) for name in among]
    return pytest.mark.parametrize(("zero", "offload"), cells)


# Tiny limits, so that tiny models fill several buckets, are really partitioned, and form several sub-groups.
deepspeed_setup.LIMITS.update(reduce_bucket_size=6000, allgather_bucket_size=6000)
deepspeed_setup.STAGE_3_LIMITS.update(
    stage3_param_persistence_threshold=40, stage3_prefetch_bucket_size=6000, sub_group_size=7000
)


@dataclass(frozen=True)
class Case:
    """One run of an engine."""

    kind: str  # of model, see `tiny_model`
    zero: int | None = None  # the engine; None is plain PyTorch
    offload: bool = False
    splits: tuple[tuple[int, ...], ...] = ((5, 4),)  # how many units each rank holds, by step; further ranks hold none
    tokens: tuple[int, ...] = (64, 64)  # of a physical batch, for each rank
    norm: float = 1.0  # C
    sigma: float = 0.0  # noise std / C
    sigmas: tuple[float, ...] = ()  # those of steps 0, 1, ..., where they differ
    bands: int = 1  # steps in a row that share noise
    optimizer: OptimizerConfig = SGD
    save_at: Path | None = None  # after the last step
    load_from: Path | None = None  # before the first
    first: int = 0  # number of the first step
    seeds: tuple[int, ...] = (0, 0)  # of the model's weights, for each rank
    half: bool = False  # the model's parameters are bfloat16
    redacted: tuple[bool, ...] = ()  # whether a schedule lists steps 0, 1, ... as redacted; later ones are noisy
    light: float = 0.0  # noise multiplier of the redacted steps
    full: tuple[int, ...] | None = None  # steps that read full text; by default those that are not redacted
    gradients: Literal["bookkeeping", "opacus"] = "bookkeeping"
    scales: tuple[tuple[str, float], ...] = ()  # of the parameters
    differ: bool = False  # ranks differ in their scales
    # Clip the means of GROUPS, of which each rank has as many as `splits` says; noise falls by 1 / (1 + t).
    micro: bool = False
    rows: bool = False  # units stand behind each other in rows


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


def losses(model: Any, batch: Any, half: bool = False) -> Tensor:
    """Weighted negative log-likelihoods of rows: in the model's own precision, or under bfloat16 autocast."""
    if isinstance(batch, Row) or packing.causal(model).config._attn_implementation == packing.BY_DOCUMENT:
        return row_losses(model, batch, half)  # all ranks use the head equally often, those without a unit too
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


def unit_gradients(model: Any, batches: Iterable[Batch]) -> list[dict[str, Tensor]]:
    """The gradient of each batch, which is a unit, by a float64 copy of the model and an ordinary backward pass."""
    model = copy.deepcopy(model).double()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = []
    for batch in batches:
        gradients = torch.autograd.grad(losses(model, batch).sum(), list(named.values()), allow_unused=True)
        pairs = zip(named.items(), gradients, strict=True)
        found.append({name: torch.zeros_like(own) if each is None else each for (name, own), each in pairs})
    return found


def lengths_of(units: list[dict[str, Tensor]], scales: tuple[float, ...] = ()) -> Tensor:
    """Norms, after a division by the scales."""
    norms = torch.tensor([[float(part.norm()) for part in unit.values()] for unit in units], dtype=torch.float64)
    return (norms / torch.tensor(scales or 1.0)).norm(dim=1)


def clipped_sum(units: list[dict[str, Tensor]], clipping: Clipping) -> dict[str, Tensor]:
    """What is meant to be computed, straight from the definition of each kind of clipping."""
    total = {name: torch.zeros_like(part) for name, part in units[0].items()}
    scales = clipping.scales or (1.0,) * len(total)
    for unit, whole in zip(units, lengths_of(units, clipping.scales).tolist(), strict=True):
        for (name, part), scale in zip(unit.items(), scales, strict=True):
            if clipping.kind == "flat":
                coefficient = min(1.0, clipping.norm / whole)
            elif clipping.kind == "automatic":
                coefficient = clipping.norm / (whole + 0.01)
            else:
                coefficient = min(1.0, clipping.norm / math.sqrt(len(unit)) / max(part.norm().item() / scale, 1e-300))
            total[name] += coefficient * part
    return total


@functools.cache
def _gradients(kind: str) -> list[dict[str, Tensor]]:
    return unit_gradients(tiny_model(kind), (physical_batches([unit], 1, PAD)[0] for unit in units()))


def _clipped(case: Case) -> list[dict[str, Tensor]]:
    """What is clipped: the gradients of units, or their means over GROUPS."""
    each = _gradients(case.kind)
    if not case.micro:
        return each
    return [{name: sum(each[unit][name] for unit in group) / len(group) for name in each[0]} for group in GROUPS]


def biting(case: Case) -> Case:
    """The case with a clipping norm that half of what is clipped exceeds."""
    return replace(case, norm=float(lengths_of(_clipped(case), tuple(dict(case.scales).values())).median()))


def wrong(case: Case, after: dict[str, Any]) -> float:
    """Relative L2 error of an update by SGD without noise, which low precision clips one percent lower."""
    clipping = Clipping(case.norm * (0.99 if case.half else 1), scales=tuple(dict(case.scales).values()))
    return error(moved(case.kind, after), clipped_sum(_clipped(case)[: sum(map(sum, case.splits))], clipping))


def error(found: dict[str, Any], truth: dict[str, Tensor]) -> float:
    """Relative, of the L2 norm."""
    assert set(found) == set(truth)
    gap = math.hypot(*(float(np.linalg.norm(found[name] - each.numpy())) for name, each in truth.items()))
    return gap / math.hypot(*(float(each.norm()) for each in truth.values()))


def made(case: Case) -> Engine:
    """The engine of a case, on this rank."""
    steps, few = 10, int(BATCH)
    training = DpSgdConfig(
        expected_batch=BATCH,
        steps=steps,
        clipping_norm=case.norm,
        noise_multiplier=1.0,
        max_tokens=16,
        optimizer=case.optimizer,
        microbatches=few if case.micro else None,
    )
    shape: dict[str, Any] = {}
    if case.bands > 1:
        shape = {"bands": case.bands}
    elif case.redacted:
        listed = (*case.redacted, *(False,) * (steps - len(case.redacted)))
        shape = {"redacted": listed, "policy": "p", "light": case.light}
    elif case.micro and case.sigma:
        shape = {"schedule": NoiseSchedule("linear", tau=1.0), "chunk": 1, "microbatches": few}
    mechanism = changing(case.sigmas or (case.sigma,) * steps, case.norm)
    if shape:
        mechanism = NoisySteps(0.5, case.sigma, case.norm, steps, **shape)
    own = 1 + collectives.rank() if case.differ else 1
    own_scales = {name: scale / own for name, scale in case.scales}
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), mechanism, BATCH, own_scales)
    model = tiny_model(case.kind, case.seeds[collectives.rank()])
    engine = EngineConfig(zero=case.zero, offload=case.offload, gradients=case.gradients, batch_tokens=64)
    own_losses = functools.partial(losses, half=case.half)
    model = model.bfloat16() if case.half else model
    found = make_engine(model, training, noise, engine, own_losses, case.half, in_rows=case.rows)
    assert found.in_rows == case.rows
    return found


def mine(case: Case, split: tuple[int, ...], step: int = 0) -> Any:
    """This rank's physical batches, rows, or micro-batches."""
    ends = np.cumsum([0, *split, *[0] * collectives.world()])
    here = collectives.rank()
    if case.micro:
        held = [[units()[unit] for unit in group] for group in GROUPS[ends[here] : ends[here + 1]]]
        return micro_batches(held, case.tokens[here], PAD)
    redacted = any(case.redacted[step : step + 1]) if case.full is None else step not in case.full
    own = units()[ends[here] : ends[here + 1]]
    own = [[replace(document, redacted=redacted) for document in unit] for unit in own]
    return (rows if case.rows else physical_batches)(own, case.tokens[here], PAD)


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


def refused(case: Any, run: Callable[[Any], Any] = taken) -> str:
    """Kind and sentence of the error that a case ends with, or nothing."""
    try:
        run(case)
    except RayPrivacyError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def before(kind: str) -> dict[str, Any]:
    """Trainable parameters of a fresh model."""
    return {name: p.detach().numpy() for name, p in tiny_model(kind).named_parameters() if p.requires_grad}


@functools.cache
def scales() -> tuple[tuple[str, float], ...]:
    """A scale for each parameter of gpt2, from 0.01 to 1."""
    names = list(before("gpt2"))
    return tuple((name, 10.0 ** (-2 * at / (len(names) - 1))) for at, name in enumerate(names))


def moved(kind: str, after: dict[str, Any]) -> dict[str, Any]:
    """The gradient sums that an update has taken, from the parameters after one step of SGD."""
    return {name: (start.astype(float) - after[name]) * BATCH / RATE for name, start in before(kind).items()}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two models agree to the bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def apart(after: dict[str, Any], expected: dict[str, Any], kind: str = "gpt2") -> float:
    """How far two runs lie apart, as a share of the way that the second one has gone."""
    start = before(kind)
    gap, way = (sum(((expected[name] - other[name]) ** 2).sum() for name in start) for other in (after, start))
    return float(np.sqrt(gap / way))


def fragments(case: Case) -> list[tuple[str, int, int]]:
    """What this rank's optimizer owns."""
    return [(held.name, held.start, held.count) for held in made(case).fragments()]


class Watched:
    """Clipped gradients that pass through unchanged, while the contribution of every unit is noted."""

    def __init__(self, gradients: Any) -> None:
        self._gradients, self.parameters = gradients, gradients.parameters
        self.seen: Counter[int] = Counter()  # how many units made each contribution

    def __call__(self, losses: Callable[[], Tensor], by_unit: Any, live: bool = True) -> Lazy:
        lazy: Lazy = self._gradients(losses, by_unit, live)
        self.seen.update(contributions(lazy))
        return lazy


def contributions(lazy: Lazy) -> Iterable[int]:
    """A number for the bits of every unit's clipped gradient, for the units of a batch that have one."""
    held = [clipped_sum.args for clipped_sum in lazy.values()]  # type: ignore[attr-defined]
    pairs = [(_listed(arguments[-2][0]), _listed(arguments[-1])) for arguments in held]
    for group in range(len(pairs[0][1])):
        own = [(groups[group] if groups else None, _coefficients(weights[group])) for groups, weights in pairs]
        for unit in range(max(len(coefficients) for _, coefficients in own)):
            parts = [_part(gradient, unit, coefficients) for gradient, coefficients in own]
            found = hash(tuple(0 if part is None else _number(part) for part in parts))
            if found != hash((0,) * len(parts)):
                yield found


def _listed(held: Any) -> list[Any]:
    """Units of one width make a group; Opacus has one for all, and a parameter without a gradient none."""
    if held is None:
        return []
    return held if isinstance(held, list) else [held]


def _number(part: Tensor) -> int:
    bits = part.flatten().contiguous().view(torch.int64 if part.dtype == torch.float64 else torch.int32).long()
    return int((bits * (2 * torch.arange(len(bits)) + 1)).sum())  # modulo 2^64; the factors are odd


def _coefficients(weights: Weights) -> Tensor:
    if weights.kept is None:
        return weights.values
    whole = torch.zeros(int(weights.kept.max()) + 1 if len(weights.kept) else 0)
    return whole.index_put_((weights.kept,), weights.values)


def _part(gradient: Any, unit: int, coefficients: Tensor) -> Tensor | None:
    if gradient is None or unit >= len(coefficients):
        return None
    one = torch.zeros_like(coefficients)
    one[unit] = coefficients[unit]
    with torch.no_grad():
        alone = Weights.of(one)
        found: Tensor = gradient.sum(alone) if isinstance(gradient, Dense) else weighted_sum([gradient], [alone])
    return found


class Seen(NamedTuple):
    """Contributions and their sum."""

    each: Counter[int]
    total: Tensor


def of_batches(gradients: Any, losses: Callable[[Any], Tensor], batches: Iterable[Batch | Row]) -> Seen:
    """Of all units of some batches."""
    watched, total = Watched(gradients), 0.0
    for batch in batches:
        lazy = watched(lambda batch=batch: losses(batch), batch.by_unit)
        total = total + torch.cat([clipped_sum().double().flatten() for clipped_sum in lazy.values()])
    return Seen(watched.seen, torch.as_tensor(total))
