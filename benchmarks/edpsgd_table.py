"""What the parts of eDP-SGD (Dupuy et al., ICASSP 2022) do to the errors of a tagger, beside the epsilon that is true.

    python benchmarks/edpsgd_table.py --data DIR --seeds 1 2 3 --json

`DIR` holds `snips_intents_slots.parquet` and `multidogo_turn.parquet`. All rows train the heads of one tagger on the
first layers of MiniLM, which are frozen, with the same coins in as many steps of as many units:

    SGD                  neither clipped nor noisy; its epsilon is infinite
    z0 ...               (a) the paper's regime: means of 8 micro-batches, noise as printed, at the paper's delta
    N ...                (b) epsilon 8: means of N micro-batches
    each                 (b) epsilon 8: every unit clipped
    linear, exponential  (c) epsilon 8, N = 256: noise that falls by epochs
    ..., scaled          (c) the same, layers divided by scales of their gradients on the public part

Figures are the semantic error rate, wrong intents, and the AUC of the loss attack on as many units of either side.
Noise is the least that the library finds for the budget; steps are taken by its engine, without a ledger: nothing of
this is released. Frozen states are remembered (remembered.py), so that a row is cheap. Rows that are in the work folder
already are not run again. No setting was tuned for an arm.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from edpsgd_claims import claims, means_of
from kept_rows import KeptRows
from remembered import RememberedEncoder
from tag_corpora import CORPORA, Rows, TagCorpus
from without_noise import WithoutNoise

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.schedule import DecayingNoise, NoiseSchedule
from rayprivacy.auditing.membership import auc
from rayprivacy.blocks.steps_plan import PART_FILES, SampledPrivacyConfig, sampled_steps
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Document, packed, physical_batches
from rayprivacy.dpsgd.clipping import micro_batches
from rayprivacy.dpsgd.engines.engine import Engine, StepNoise, make_engine
from rayprivacy.dpsgd.layer_scale import scales_of_gradients
from rayprivacy.dpsgd.losses import own_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.methods.edp_sgd.heldout import frames
from rayprivacy.methods.edp_sgd.plan import as_published
from rayprivacy.methods.edp_sgd.reading import TaggedRows
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.tagging.figures import all_errors
from rayprivacy.tagging.loss import TaggerLoss, losses, predicted
from rayprivacy.tagging.model import load_tagger
from rayprivacy.tagging.settings import TaggerConfig

COLUMNS, TOKENS, AT_ONCE = ("intent", "slots"), 32, 2048
EPSILON, DELTA, PAPERS_DELTA, PAPERS_WORKERS = 8.0, 1e-6, 5e-4, 8
MEANINGLESS = 50
NEVER = 1e9  # a clipping norm that nothing reaches
TAU = {"linear": 0.3, "exponential": 0.2}
EPOCHS = 4
RESULT = Path("benchmarks/results/edpsgd_table.json")
Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """What tells a row from the others.

    Attributes:
        part: of the table.
        microbatches: whose means are clipped; None clips each unit.
        z0: noise multiplier as the paper prints it; None is the least for the budget, and 0 is SGD without clipping.
        schedule: how noise falls.
        scaled: whether layers have scales.
    """

    part: str
    microbatches: int | None = None
    z0: float | None = None
    schedule: str = "constant"
    scaled: bool = False


ARMS = {
    "SGD": Arm("a", z0=0.0),
    **{f"z0 {z0:g}": Arm("a", PAPERS_WORKERS, z0) for z0 in (1e-3, 1e-2, 1e-1)},
    **{f"N {count}": Arm("b", count) for count in (16, 64, 256)},
    "each": Arm("b"),
    **{schedule: Arm("c", 256, schedule=schedule) for schedule in TAU},
    **{f"{schedule}, scaled": Arm("c", 256, schedule=schedule, scaled=True) for schedule in ("constant", *TAU)},
}


class Bench:
    """A corpus and its tagger; trains and measures one arm after the other."""

    def __init__(self, given: argparse.Namespace, corpus: TagCorpus) -> None:
        self._given, self._corpus, tags = given, corpus, corpus.tags
        base = {"base": given.base, "layers": given.layers, "dtype": "float32", "trained": "heads"}
        self._backbone = load_tagger(TaggerConfig.model_validate(base | {"intents": tags.intents, "slots": tags.slots}))
        model = self._backbone.model
        remembered = RememberedEncoder(model.bert)
        model.bert, model.frozen_parts = remembered, [remembered]
        self._loss = partial(own_losses, loss=TaggerLoss(len(tags.all_intents), len(tags.names)))
        self._rows = TaggedRows(tags, COLUMNS, TOKENS)
        self._read = partial(self._rows, backbone=self._backbone, version=0)
        self._owned: dict[str, list[Document]] = defaultdict(list)
        for row, document in zip(corpus.private, self._read(corpus.private), strict=True):
            self._owned[row[corpus.unit]].append(document)
        self._test = self._some(corpus.test)
        self._members = self._some(corpus.private)

    def _some(self, rows: Rows) -> Rows:
        """Some rows, the same in all arms."""
        chosen = np.random.default_rng(0).permutation(len(rows))[: self._given.tested]
        return [rows[at] for at in chosen]

    @cached_property
    def _scales(self) -> dict[str, float]:
        model = trainable(self._backbone, AdapterConfig(kind="full"))
        documents = self._read(self._some(self._corpus.public)[:512])
        batches = packed([[each] for each in documents], AT_ONCE, self._backbone.end)
        return scales_of_gradients(model, batches, self._loss)

    def settings(self, arm: Arm) -> DpSgdConfig:
        """The steps of an arm."""
        given, falling = self._given, {}
        epoch = given.steps // EPOCHS
        if arm.schedule != "constant":
            falling = {"kind": arm.schedule, "tau": TAU[arm.schedule], "steps_per_epoch": epoch}
        return DpSgdConfig.model_validate(
            {
                "sampling_rate": given.rate,
                "expected_batch": given.rate * len(self._owned),
                "steps": given.steps,
                "chunk": epoch,
                "clipping_norm": NEVER if arm.z0 == 0 else given.norm,
                "noise_schedule": falling,
                "microbatches": arm.microbatches,
                "max_records": 2,
                "max_tokens": TOKENS,
                "optimizer": {"learning_rate": given.learning_rate},
            }
        )

    def mechanism(self, arm: Arm, training: DpSgdConfig) -> NoisySteps:
        """Noise and charge of an arm."""
        rate, steps, norm = training.sampling_rate, training.steps, training.clipping_norm
        if arm.z0 == 0:
            return WithoutNoise(rate, 0.0, norm, steps)
        if arm.z0 is None:
            return sampled_steps(training, SampledPrivacyConfig(epsilon=EPSILON, delta=DELTA, composition="pld"))
        effective = _as_printed(arm, steps).effective(arm.z0)
        shape = {"schedule": NoiseSchedule(), "chunk": training.chunk, "microbatches": arm.microbatches}
        return NoisySteps(rate, effective, norm, steps, **shape)

    def row(self, arm: Arm, seed: int) -> Row:
        """Train an arm, and its figures."""
        training = self.settings(arm)
        mechanism = self.mechanism(arm, training)
        model = self._trained(arm, training, mechanism, Key(np.random.default_rng(seed).bytes(32)))
        tags, private, test = self._corpus.tags, self._read(self._members), self._read(self._test)
        said = self._rows.by_word(self._test, self._backbone, predicted(model, tags, test))
        errors = all_errors(frames(self._test, COLUMNS, tags, said))
        found = {"part": arm.part, "semantic_error_rate": errors.rate, "wrong_intents": errors.intents / errors.texts}
        found["auc_of_losses"] = auc(*(-losses(model, tags, some) for some in (private, test)))
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()} | _claim(
            arm, mechanism
        )

    def _trained(self, arm: Arm, training: DpSgdConfig, mechanism: NoisySteps, key: Key) -> Any:
        parts = min(arm.microbatches or PART_FILES, PART_FILES)
        units = [
            Unit(unit_tag(key, name), tuple(documents), part=key.integer("part", name) % parts)
            for name, documents in self._owned.items()
        ]
        sampler = PoissonSampler(key, "coins", mechanism.sampling_rate, units, training.max_records)
        scales = self._scales if arm.scaled else {}
        noise = StepNoise(KeyedNoise(key, "noise"), mechanism, training.divisor, scales)
        model = trainable(self._backbone, AdapterConfig(kind="full"))
        engine: Engine = make_engine(model, training, noise, EngineConfig(batch_tokens=AT_ONCE), self._loss)
        for step in range(training.steps):
            if arm.microbatches is None:
                engine.step(step, physical_batches(sampler.sample(step), AT_ONCE, self._backbone.end))
            else:
                groups = sampler.micro_batches(step, arm.microbatches // parts)
                engine.step(step, micro_batches(groups, AT_ONCE, self._backbone.end))
        model.load_state_dict(engine.state_dict(), strict=False)
        return model


def _as_printed(arm: Arm, steps: int) -> DecayingNoise:
    assert arm.microbatches is not None, "the paper's rows are of micro-batches"
    return DecayingNoise(NoiseSchedule(), steps, arm.microbatches)


def _claim(arm: Arm, mechanism: NoisySteps) -> Row:
    """The sound epsilon of a row, the paper's own for the same noise, and whether it means anything."""
    if isinstance(mechanism, WithoutNoise):
        return {"noise_multiplier": 0.0, "delta": None, "log10_sound": None, "log10_published": {}, "guarantee": "none"}
    if arm.z0 is None:
        delta, sound = DELTA, epsilon([mechanism.event], DELTA, "pld")
    else:  # of steps that read everybody, which cost no less: coins hardly help where there is next to no noise
        delta, sound = PAPERS_DELTA, _as_printed(arm, mechanism.steps).figures(arm.z0, PAPERS_DELTA).epsilon
    return {
        "noise_multiplier": mechanism.noise_multiplier,
        "delta": delta,
        "log10_sound": round(math.log10(sound), 2),
        "log10_published": {
            label: round(math.log10(stated), 2) for label, stated in as_published(mechanism, delta).items()
        },
        "guarantee": "no meaningful guarantee" if sound > MEANINGLESS else "",
    }


def run(given: argparse.Namespace) -> list[Row]:
    """Run, or find, all rows: seed by seed, so that what has run when it is stopped has all arms."""
    given.work.mkdir(parents=True, exist_ok=True)
    kept, rows, benches = KeptRows(given.work / "rows.jsonl"), [], dict[str, Bench]()
    settings = {name: getattr(given, name) for name in ("layers", "steps", "rate", "norm", "learning_rate", "tested")}
    for seed in given.seeds:
        for corpus in given.corpora:
            for name in given.arms:

                def measure(corpus: str = corpus, name: str = name, seed: int = seed) -> Row:
                    if corpus not in benches:
                        benches[corpus] = Bench(given, CORPORA[corpus](given.data))
                    return benches[corpus].row(ARMS[name], seed)

                rows.append(kept.row({"corpus": corpus, "arm": name, "seed": seed} | settings, measure))
                if given.json:
                    _write(rows, given.out)
    return rows


def _write(rows: Sequence[Row], out: Path) -> None:
    found = {"means": means_of(rows), "claims": claims(rows), "rows": rows}
    out.write_text(json.dumps(found, indent=1) + "\n")


def main(words: list[str] | None = None) -> None:
    given = _arguments(words)
    rows = run(given)
    if not given.json:
        json.dump({"means": means_of(rows), "claims": claims(rows)}, sys.stdout, indent=1)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/edpsgd_table"))
    parser.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=list(CORPORA))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=40, help="a multiple of 4")
    parser.add_argument("--rate", type=float, default=0.05, help="of sampling")
    parser.add_argument("--norm", type=float, default=0.1, help="of clipping")
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--tested", type=int, default=1000, help="rows of either side that are measured")
    parser.add_argument("--base", default="minilm-l6")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="write the result file after every row")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
