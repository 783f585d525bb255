"""The plan of a run: its stages in order, what each reads, and what each charges. Made from the recipe alone.

A method describes itself by its plan, before any data is touched. The account is opened with the plan's events, a
search prices a trial by them, the certificate shows epsilon by stage, and gauges count the work that stages announce.

How much a stage computes (`Stage.efforts`: floating-point operations of one of a few kernels) is declared from public
numbers alone, and `rayprivacy plan` estimates from it how long a run will take (`runs.estimate`); nothing else depends
on it. How many users a corpus has is private, so work that grows with them is declared for each user, and multiplied by
a public guess (`Plan.users`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import leaves
from rayprivacy.core.units import AccountKind, Budget, Protection
from rayprivacy.evaluation.settings import SCORED
from rayprivacy.generation.settings import ONNX, has_onnx
from rayprivacy.ledger.rules import Rule
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Placed, in_order, of_unit
from rayprivacy.runs.recipe import Recipe

# In the model's number format: a trunk over whole rows, over one token of many texts, and forwards and backwards. In
# float32: sampling by ONNX Runtime, one large product, and many small ones.
Kernel = Literal["encode", "decode", "train", "sample", "product", "batched"]
SHARED, MOST_THREADS = 0.7, 16  # of a core that each further thread of one process adds, and threads that add something
PARTS_SHARDED, STEPS_DONE = "parts_sharded", "steps_done"  # counts of more than one method
TEXTS_WRITTEN, MODELS_MEASURED = "texts_written", "models_measured"
CORPUS, EVALUATION = "corpus", "evaluation"  # stages that every run has
COMPARISON = "comparison with private text"  # of a run that is compared
GROUPS_MEASURED, GROUPS = "groups_measured", 4  # embeddings, fidelity, words, memorisation
SIDES, TEXT_TOKENS = 3, 16  # training, held-out and synthetic texts, and tokens of each text
# Operations of one large product that take as long as the sentence model, which computes in float32 whatever the run
# does: 12 ms for a call and 4.4 ms for a text of 12 words, at 89 billion a second. A call is one user's texts, or many.
SENTENCES_CALL, SENTENCE = 1.1e9, 0.4e9
FULL = 0.5  # how long a private text is taken to be, of the tokens that a recipe keeps of it


@dataclass(frozen=True)
class Effort:
    """Some work of a stage."""

    kernel: Kernel  # what most of it is like
    flops: float  # floating-point operations, of each user where `users` is set; not a number where that is not known
    users: bool = False  # whether there is that much for each private user
    processes: int = 1  # the largest number of processes that can share it
    threads: bool = True  # whether each process uses all cores of its machine; otherwise one, as actors do

    def flops_per_core(self, cpus: int, nodes: int, users: float) -> float:
        """Operations of each core, where machines of `cpus` cores share the work."""
        threads = 1 + SHARED * (min(cpus, MOST_THREADS) - 1)
        shared = min(self.processes, nodes) * threads if self.threads else min(self.processes, cpus * nodes)
        return self.flops * (users if self.users else 1) / shared


UNKNOWN = Effort("product", math.nan)


def sampling_kernel(engine: str) -> Kernel:
    """The kernel whose speed an engine's sampling has; `auto` is taken for an installed fast one that has the model."""
    return "sample" if engine == ONNX or (engine == "auto" and has_onnx()) else "decode"


@dataclass(frozen=True)
class Work:
    """A count of finished pieces of work that gauges, console and log show while a stage runs. Everybody may see it."""

    what: str  # name of the count, e.g. `steps_done`.
    total: int  # a public number, fixed by the recipe


@dataclass(frozen=True)
class Stage:
    """One stage of a method."""

    name: str  # on the console, in run.log, in the plan and in the certificate
    reads: str  # in words, e.g. "public text", "private text", "released votes".
    detail: str = ""  # what it does, with its public numbers, for the plan
    # its accounting events, one for each charge, in order; none for a stage that is free
    charges: tuple[DpEvent, ...] = ()
    # whether its charges are chunks of one piece of work, such as a training, after each of which a search may look at
    # the model and stop. The other charged stages pass the gate all at once.
    chunked: bool = False
    work: tuple[Work, ...] = ()  # what is counted while it goes on
    efforts: tuple[Effort, ...] = (UNKNOWN,)  # how much it computes, for estimates of time; empty for next to nothing
    mechanism: Any = None  # the object with sensitivity, noise and event that its charges are of; the run draws by it

    @property
    def event(self) -> DpEvent:
        """All charges as one event."""
        return composed(self.charges)


@dataclass(frozen=True)
class SecondAccount:
    """A central account that pays for the chunked stage of a run besides, for a guarantee of its own."""

    account: str  # ledger, corpus and composition are those of the run
    budget: Budget  # its cap, if it is opened by this run
    protection: Protection
    event: DpEvent  # what all chunks cost it


class Block:
    """A piece of a method: its stages with their mechanisms, what the claim rests on with it, and its own checks.

    Several methods share most blocks (package `blocks`). What a block says is in the plan because the block is.
    """

    calibrated: ClassVar[bool] = False  # whether its noise is the least that fits what all other blocks leave

    def fitted(self, recipe: Any, beside: Sequence[DpEvent]) -> Self:
        """The block with its noise, for a calibrated one; `beside` are the charges of the blocks that are not."""
        return self

    def stages(self, recipe: Any) -> tuple[Stage, ...]:
        """Its stages, in order; each carries its mechanism, hence its charge."""
        return ()

    def assumptions(self, recipe: Any) -> tuple[Placed, ...]:
        """What the claim rests on and the software cannot check, and where the certificate says it."""
        return ()

    def facts(self, recipe: Any) -> Mapping[str, Any]:
        """Further fields of the plan, by name."""
        return {}

    def check(self, recipe: Any) -> None:
        """Refuse inputs that cannot be used, before there is an account; ConfigError names the key, quotes nothing."""


@dataclass(frozen=True)
class Plan:
    """What a run will do and charge.

    Raises:
        ValueError: two stages have one name, or a plan of a metric-local account does not say what it protects.
    """

    # in the order in which they begin; those that every run has (corpus, evaluation) are left out
    stages: tuple[Stage, ...]
    protection: Protection  # what the charges protect: unit, relation, kind
    noise: str  # one line about the noise and how it was chosen, for people
    assumptions: tuple[str, ...]  # what the claim rests on, in sentences; the method's own and those of the unit
    shards: int = 1  # how many shards the corpus is cut into
    shards_per_part: int = 1  # shards of one part file
    policy: str = ""  # name of the public policy function, for a selective account; empty for the others
    protects: str = ""  # what of a unit is protected, where that is not all of it, for the account; see `meaning`
    # what people should read first of the claim, in the plan, the certificate and the card, by label
    figures: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # of the certificate, such as that a guarantee says nothing
    # figures of the paper's own analysis where it differs from ours, by label
    as_published: Mapping[str, float] = field(default_factory=dict)
    users: float = 1000.0  # a public guess at how many users the corpus has; for estimates of time, and nothing else
    # the stage in which figures are measured on held-out users, for its work and efforts
    measuring: Stage = Stage(EVALUATION, "held-out private text")
    second: SecondAccount | None = None  # the account that pays besides, if there is one
    blocks: tuple[Block, ...] = field(default=(), repr=False)  # what it was made of, with `Plan.of`

    @classmethod
    def of(cls, recipe: Any, *blocks: Block, says: Sequence[Placed] = (), **facts: Any) -> "Plan":
        """The plan of a recipe whose method is made of blocks, in the order of their stages.

        Args:
            recipe: the recipe.
            blocks: the calibrated one finds its noise beside the charges of all others; ValueError for two of them.
            says: the method's own assumptions. Those of the unit, of the blocks and on timing are added.
            facts: further fields of the plan; they go before those of the blocks.
        """
        if sum(block.calibrated for block in blocks) > 1:
            raise ValueError("two blocks are calibrated, and each would take all that the others leave: make them one")
        given = [None if block.calibrated else block.stages(recipe) for block in blocks]
        beside = [event for stages in given if stages for stage in stages for event in stage.charges]
        fitted = tuple(block.fitted(recipe, beside) if block.calibrated else block for block in blocks)
        listed = [block.stages(recipe) if own is None else own for block, own in zip(fitted, given, strict=True)]
        found = {name: value for block in fitted for name, value in block.facts(recipe).items()}
        said = [*of_unit(recipe.privacy.unit), *says, *(each for block in fitted for each in block.assumptions(recipe))]
        stages = tuple(stage for own in listed for stage in own)
        return cls(stages=stages, assumptions=in_order(said), blocks=fitted, **(found | facts))

    def check(self, recipe: Any) -> None:
        """Refuse what a block cannot use."""
        for block in self.blocks:
            block.check(recipe)

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"two stages have one name, and the name is part of what is charged: {names}")
        if self.protection.kind is AccountKind.METRIC_LOCAL and not self.protects:
            raise ValueError("the plan is metric-local and does not say what of a unit it protects: give 'protects'")

    @property
    def charged(self) -> list[Stage]:
        """The stages that charge the account."""
        return [stage for stage in self.stages if stage.charges]

    @property
    def charges(self) -> list[DpEvent]:
        """Every charge of the run, in order."""
        return [event for stage in self.stages for event in stage.charges]

    @property
    def events(self) -> list[DpEvent]:
        """One event for each charged stage."""
        return [stage.event for stage in self.charged]

    @property
    def parts(self) -> int:
        """How many part files the corpus is cut into."""
        return -(-self.shards // self.shards_per_part)

    @property
    def chunks(self) -> int:
        """How many chunks the last chunked stage has; 0 where a run cannot be stopped half-way."""
        return len(self.last_chunked.charges) if self.last_chunked else 0

    @property
    def last_chunked(self) -> Stage | None:
        """The last stage that is charged in chunks, at the end of any of which a run can be stopped."""
        return next((stage for stage in reversed(self.charged) if stage.chunked), None)

    def stage(self, name: str) -> Stage:
        """The stage of this name, or KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"the plan has no stage '{name}': add it there, so that it can be seen beforehand")

    def epsilons(self, rule: Rule) -> dict[str, float]:
        """What each charged stage costs alone, by name, at the delta of the account and by the account's own rule."""
        return {stage.name: epsilon_of(rule, stage.charges) for stage in self.charged}


def epsilon_of(rule: Rule, events: Sequence[DpEvent]) -> float:
    """The epsilon of some events together, by the rule of an account that holds nothing else."""
    used = (0,) * rule.size
    for event in events:
        cost = rule.cost(event, used)
        used = tuple(before + more for before, more in zip(used, cost, strict=True))
    return float(rule.epsilon(used))


def composed(events: Sequence[DpEvent]) -> DpEvent:
    """Some events as one; equal mechanisms in a row become a single count.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> composed([SelfComposedDpEvent(GaussianDpEvent(2.0), 3), SelfComposedDpEvent(GaussianDpEvent(2.0), 4)])
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=7)
    """
    counted: list[tuple[DpEvent, int]] = []
    for event in events:
        for leaf, times in leaves(event):
            if counted and counted[-1][0] == leaf:
                counted[-1] = (leaf, counted[-1][1] + times)
            else:
                counted.append((leaf, times))
    parts = [SelfComposedDpEvent(leaf, times) for leaf, times in counted]
    return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)


def all_stages(plan: Plan, recipe: Recipe, measured: bool = True) -> tuple[Stage, ...]:
    """The stages of a plan, and those that measure."""
    if not measured:
        return plan.stages
    compared = (_comparison(recipe),) if recipe.evaluation.compare else ()
    return (*plan.stages, plan.measuring, *compared)


def _comparison(recipe: Recipe) -> Stage:
    texts, base, work = recipe.evaluation.compare, size_of(recipe.model.base), (Work(GROUPS_MEASURED, GROUPS),)
    scored = Effort("encode", base.forward(SIDES * min(texts, SCORED) * TEXT_TOKENS))
    efforts = (scored, Effort("product", SIDES * texts * SENTENCE))
    return Stage(COMPARISON, f"{texts} private texts of each side", work=work, efforts=efforts)
