"""The charged metric `heldout_loss`: the mean loss on held-out users, released with noise and paid before it is seen.

    model of a trial (released) -> loss of each held-out unit (private) -> RELEASE GATE: one charge, one draw -> figure

The mechanism is the label histogram of `release.histogram` with two cells, and draws no noise of its own. A unit (user,
or record) whose loss is l nats per token, between 0 and the public bound L (`metric.most`), brings GRID counts:

    a = floor(GRID * l / L) in cell 0,     GRID - a in cell 1

so that the released share of cell 0, times L, is the mean loss. A loss that is not finite counts as L.

Privacy argument. The histogram divides what a unit brings by GRID: its sums move by at most 2^20 in L2, its declared
sensitivity, when a unit is added or removed; a lies between 0 and GRID whatever the loss is. That needs the loss of a
unit to be a function of this unit and of the released model alone, to the last bit. So each unit is scored by itself
(in a common batch the padding, hence the rounding, of one would depend on the others), and of a user's texts the first
`metric.records` count, in a keyed order of their own. All held-out units take part: the first n of them would be
another set when one joins, and move the sums twice. A keyed coin of each user, with a
public rate, decides whether the user is held out: lower `corpus.holdout` to thin them.

Held-out users are no training users. So one unit changes the trainings, which their own charges cover, or the inputs of
these releases, and never both. Both are charged to the same account, one after the other: an upper bound.

The gate hands out shares: a cell below two standard deviations of its noise is empty. A share that is 0, 1 or exactly a
half (both cells empty) therefore says that there is more noise than signal, and would look like the best or worst of
all trials. Such a report is an error. It is computed from what was released, so it tells nothing more.

>>> counts_of(np.array([2.5, 99.0, -1.0, np.nan]), most=10.0).tolist()
[[16384, 49152], [65536, 0], [0, 65536], [65536, 0]]
>>> figure_of(0.25, most=10.0)
2.5
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.auditing.scoring import Scored, joint_losses
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.files import private_directory, write_atomic
from rayprivacy.core.keys import load_key
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import read_holdout, read_manifest
from rayprivacy.methods.registry import method_of
from rayprivacy.models.backbone import Backbone, load_backbone, tokenizer_rules
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.gate import Asked, Gate
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.runs.account import charged_besides
from rayprivacy.runs.audit import scored_models
from rayprivacy.runs.directory import Run
from rayprivacy.runs.recipe import Recipe
from rayprivacy.tuning.budgeted import Owed
from rayprivacy.tuning.space import MetricConfig

GRID = 2**16  # counts of a unit: its loss is rounded down to a multiple of L / GRID
_STORED = np.dtype("<i8")
Sums = npt.NDArray[np.int64]
Losses = npt.NDArray[np.float64]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scoring:
    """How a trial's held-out units are scored; all of it public, or released."""

    config: MetricConfig
    models: Sequence[Scored]  # how the released models read a row
    loaded: Sequence[Backbone]  # these models

    @staticmethod
    def of(run: Run[Any], config: MetricConfig) -> "Scoring":
        """Load the models that a trial has released."""
        recipe = run.recipe
        models = [replace(each, max_tokens=config.max_tokens) for each in scored_models(method_of(recipe), recipe)]
        bases = [ModelConfig(base=str(run.root / each.folder), dtype=recipe.model.dtype) for each in models]
        return Scoring(config, models, [load_backbone(base, released=True) for base in bases])

    @property
    def question(self) -> str:
        """Digest of what a unit is asked: its loss by these models, and how much of it counts.

        The models are named by their weights: a recipe may change how they are made after the gate, and that is no part
        of its release id.
        """
        models = [[each.digest, tokenizer_rules(each.tokenizer)] for each in self.loaded]
        reading = [[each.folder, each.max_tokens, each.max_context] for each in self.models]
        return digest_json([models, reading, self.config.records, self.config.most, GRID])


def report_mechanism(config: MetricConfig, recipe: Recipe) -> HistogramMechanism:
    """Noise and charge of one report of a trial; ConfigError where the recipe holds no users out."""
    assert config.noise_multiplier is not None
    unit = recipe.privacy.unit
    if unit is PrivacyUnit.PHRASE:
        raise ConfigError(
            f"privacy.unit is 'phrase' and metric.name is '{config.name}', which protects users or records: use"
            " public_perplexity."
        )
    if recipe.corpus.holdout == 0:
        raise ConfigError(
            f"corpus.holdout is 0 and metric.name is '{config.name}', which is measured on held-out users: set"
            " fixed.corpus.holdout, e.g. to 0.1, or use public_perplexity."
        )
    return HistogramMechanism(cells=2, sigma=config.noise_multiplier, unit=unit)


def report_release(config: MetricConfig, recipe: Recipe, chunk: int) -> str:
    """Name of the release, one of its own, that measures the model as it is after some chunks of a trial."""
    return f"{recipe.release_id}-metric-{digest_json(config.model_dump(mode='json'))[:8]}-{chunk}"


def with_reports(charges: Sequence[Owed], reports: Sequence[Owed]) -> list[Owed]:
    """The charges of a trial in the order in which they are made: each report follows its chunk, the last ones there.

    >>> with_reports([("run", "histogram"), ("run", "1"), ("run", "2")], [("metric-1", ""), ("metric-2", "")])
    [('run', 'histogram'), ('run', '1'), ('metric-1', ''), ('run', '2'), ('metric-2', '')]
    """
    first = len(charges) - len(reports)
    pairs = zip(charges[first:], reports, strict=True)
    return [*charges[:first], *(charge for pair in pairs for charge in pair)]


def heldout_loss(run: Run[Any], config: MetricConfig, chunk: int) -> float:
    """The mean loss of the model that some chunks of a trial have made and released.

    Charged before its noise is drawn, and served from the ledger after. Raises ReleaseError where noise hides it.
    """
    recipe, privacy = run.recipe, run.recipe.privacy
    mechanism, release = report_mechanism(config, recipe), report_release(config, recipe, chunk)
    key = load_key(Path(privacy.key))
    with closing(privacy.open_ledger(run.ledger_head())) as ledger:
        if not ledger.charges_of(privacy.account, release):  # before private text is read for nothing
            ledger.check(privacy.account, mechanism.event, mechanism.protection)
        scoring = Scoring.of(run, config)
        asked = Asked(read_manifest(run.private("shards")).corpus_digest(key), scoring.question)
        # Of no other ledger and no other corpus, as the noise of the trial's own steps.
        name = key.digest("metric-sums", ledger.entries(privacy.account)[0].hash, asked.corpus, release, asked.question)
        kept = private_directory(run.private("metric")) / name[:16]
        sums = Private(_kept(kept, lambda: _sums(run, scoring, mechanism)))
        shares = Gate(ledger, privacy.account, key).release_histogram(release, mechanism, sums, asked=asked)
        run.keep_ledger_head(ledger.head())
        if more := charged_besides(ledger, privacy.account, release, mechanism.event, [mechanism.event]):
            run.console.print(f"  {config.name}: {more}", highlight=False, markup=False, soft_wrap=True)
    return figure_of(float(shares.value[0]), config.most)


def counts_of(losses: Losses, most: float) -> Sums:
    """The counts of units, [units, 2]: their losses as whole numbers in cell 0, and the rest of GRID in cell 1."""
    bounded = np.clip(np.where(np.isfinite(losses), losses, most), 0.0, most)
    above = np.minimum(np.floor(GRID * (bounded / most)), GRID).astype(np.int64)
    return np.stack([above, GRID - above], axis=1)


def figure_of(share: float, most: float) -> float:
    """The mean loss, in nats per token, from the released share of cell 0; ReleaseError where a cell is empty."""
    if share in (0.0, 0.5, 1.0):
        raise ReleaseError(
            "the noise of 'heldout_loss' hides its figure: hold out more users (fixed.corpus.holdout), bring"
            " metric.most nearer to the losses, or lower metric.noise_multiplier."
        )
    return share * most


def heldout_units(rows: pa.Table, unit: PrivacyUnit, records: int) -> list[list[Row]]:
    """The texts of each held-out unit, one record or the first `records` of a user; rows are sorted by user."""
    if unit is PrivacyUnit.RECORD:
        return [[row] for row in rows.to_pylist()]
    kept = rows.filter(pc.less(rows["record"], records)).to_pylist()
    return [list(own) for _, own in groupby(kept, key=lambda row: row["user"])]


def unit_losses(units: Sequence[Sequence[Row]], losses: Callable[[Sequence[Row]], Losses]) -> Losses:
    """The mean over each unit's texts of their loss per token; no unit changes a bit of another one's."""
    return np.array([losses(unit).mean() for unit in units], dtype=np.float64)


def _kept(path: Path, make: Callable[[], Sums]) -> Sums:
    if not path.exists():
        write_atomic(path, make().astype(_STORED).tobytes())
    return np.frombuffer(path.read_bytes(), dtype=_STORED).astype(np.int64)


def _sums(run: Run[Any], scoring: Scoring, mechanism: HistogramMechanism) -> Sums:
    config = scoring.config
    units = heldout_units(read_holdout(run.private("shards")), mechanism.unit, config.records)
    losses = unit_losses(units, partial(joint_losses, scoring.models, scoring.loaded))
    return mechanism.contribution(counts_of(losses, config.most))
