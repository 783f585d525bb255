"""The context of a run: what every method is given, and the ways through the release gate, named by stage.

On a cluster that grows and shrinks, the machines that a stage asks for come before its work begins: a stage counts the
CPUs of the cluster when it begins, and later ones would stay idle. Ray's autoscaler is asked by a placement group,
which is given back as soon as it is there. A group goes with its driver, so a run that is killed keeps no machine;
machines without work go after the cluster's own idle time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import ray
from dp_accounting.dp_event import DpEvent
from ray.util.placement_group import placement_group, remove_placement_group

from rayprivacy.accounting.events import to_json
from rayprivacy.auditing.canaries import PLAN_FILE, CanaryPlan, canary_rows, record_plan
from rayprivacy.core.console import Told
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Private, Released, digest_json
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.corpus.phrases import PhraseFile
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.sources import left_out
from rayprivacy.corpus.verify import verify_with_ray
from rayprivacy.ledger.store import Ledger
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.sources import for_another_process
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.release.files import FileRelease, release_file
from rayprivacy.release.gate import Asked, Gate, VoteManifest, input_digest
from rayprivacy.release.histogram import HistogramMechanism, Margins
from rayprivacy.release.thresholded import KeySums, KnownKeys, ReleasedCounts, ThresholdedCounts
from rayprivacy.release.votes import VoteMechanism
from rayprivacy.runs.account import charged_besides
from rayprivacy.runs.directory import BASE_MODEL, CORPUS_BY, R, Run, forget_another_corpus
from rayprivacy.runs.plan import CORPUS, PARTS_SHARDED, Plan
from rayprivacy.runs.progress import ProgressGauges
from rayprivacy.runs.recipe import LOCAL, StageNeeds
from rayprivacy.runs.source import corpus_of, version_of

MINUTES = 15.0  # that a stage waits at most: autoscalers take a few to start a machine
T = TypeVar("T")


def await_machines(needs: StageNeeds, report: Callable[[str], None]) -> None:
    """Wait MINUTES at most until the cluster has what a stage asks for, and report what is missing then."""
    wanted = {kind: count for kind, count in (("CPU", needs.cpus), ("GPU", needs.gpus)) if count}
    bundles = [{kind: 1} for kind, count in wanted.items() for _ in range(_asked(kind, count))]
    if not bundles:
        return
    group = placement_group(bundles)
    try:
        came = group.wait(MINUTES * 60)
    finally:
        remove_placement_group(group)
    if not came:
        there = {kind: int(ray.cluster_resources().get(kind, 0)) for kind in wanted}
        report(f"asked for {_spoken(wanted)}, and after {MINUTES:g} min there are {_spoken(there)}: going on")


def _asked(kind: str, wanted: int) -> int:
    """How many a group must hold so that the cluster has what is wanted: a group is given none that others hold."""
    missing = wanted - int(ray.cluster_resources().get(kind, 0))
    return missing + int(ray.available_resources().get(kind, 0)) if missing > 0 else 0


def _spoken(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {kind}s" for kind, count in counts.items())


@dataclass(frozen=True)
class Pretrained:
    """The base model after training on public text (`blocks.pretrain`)."""

    backbone: Backbone
    config: ModelConfig  # how other processes load it
    text: str  # digest of the public text
    figures: dict[str, float]  # loss on held-out public text before and after, in nats for each token


@dataclass
class RunContext(Generic[R]):
    """One run while it goes on."""

    run: Run[R]  # its directory, console and log
    plan: Plan  # its stages and charges
    open_ledger: Callable[[], Ledger]  # opens the book, and the account, or refuses
    key: Key  # the run's secret
    progress: ProgressGauges  # its gauges
    # chunks after which to stop and to leave the model alone, without a certificate; None for a whole run
    until: int | None = None
    # the base model, where it was loaded and tried before the account was opened
    tried_base: Backbone | None = None
    corpus: ShardManifest = field(init=False)  # the sharded corpus, after `shard`
    base: Backbone | None = field(init=False, default=None)  # the model that the recipe names, after `load_model`
    # what it became by training on public text; None where it was not trained
    pretrained: Pretrained | None = field(init=False, default=None)
    # digest and origin of the scales of layers, by the stage that trained with them
    layer_scales: dict[str, str] = field(init=False, default_factory=dict)
    # the profile whose words users voted for, by its release and its digest; empty where they did not
    profile: str = field(init=False, default="")
    # what was tried on public tokens before the steps of a stage, in a sentence, by the stage
    tried: dict[str, str] = field(init=False, default_factory=dict)
    # whether it was said that the release was charged for something else, too
    besides_said: bool = field(init=False, default=False)

    @cached_property
    def ledger(self) -> Ledger:
        """The book, whose account can pay; opened when the first charge is about to be made."""
        return self.open_ledger()

    @property
    def recipe(self) -> R:
        """The recipe."""
        return self.run.recipe

    @property
    def shards(self) -> Path:
        """The folder of the sharded corpus."""
        return self.run.private("shards")

    @property
    def key_path(self) -> Path:
        """The file of the key, for workers."""
        return Path(self.recipe.privacy.key).absolute()

    @property
    def gate(self) -> Gate:
        """The release gate of the account."""
        return Gate(self.ledger, self.recipe.privacy.account, self.key)

    @property
    def stops_early(self) -> bool:
        """Whether this run ends before its last chunk."""
        return self.until is not None and self.until < self.plan.chunks

    def chunks_of(self, stage: str) -> int | None:
        """After how many chunks a stage stops; None where it runs to its end, as all do but the last chunked one."""
        last = self.plan.last_chunked
        return self.until if last is not None and last.name == stage else None

    @property
    def backbone(self) -> Backbone | None:
        """The public model that the run stands on, after `load_model`."""
        return self.pretrained.backbone if self.pretrained else self.base

    @property
    def public_models(self) -> Mapping[str, Any]:
        """The model that the recipe names, as `base`, and what it became by pretraining, as `pretrained`."""
        found = {"base": self.base, "pretrained": self.pretrained and self.pretrained.backbone}
        return {name: backbone.model for name, backbone in found.items() if backbone}

    @property
    def model(self) -> ModelConfig:
        """How other processes load the public model that the run stands on."""
        model = self.pretrained.config if self.pretrained else self.recipe.model
        return model.model_copy(update={"base": for_another_process(model.base)})

    @property
    def model_version(self) -> dict[str, str]:
        """The base model by name and digest, for the certificate; nothing where none was loaded."""
        if self.base is None:
            return {}
        named = {"base model": f"{self.recipe.model.base} {self.base.digest[:16]}"}
        if self.pretrained is None:
            return named
        return named | {"pretrained model": f"{named['base model']} -> {self.pretrained.backbone.digest[:16]}"}

    @property
    def corpus_version(self) -> dict[str, str]:
        """The version of the table that the corpus is, for the certificate; nothing where it is none."""
        return {"corpus": self.corpus.version} if self.corpus.version else {}

    @property
    def public_inputs(self) -> tuple[str, ...]:
        """Sentences for the certificate on public inputs that are known by their digest or their name alone."""
        inputs = [
            f"the scales of layers in '{stage}' have digest {named}" for stage, named in self.layer_scales.items()
        ]
        if self.pretrained is not None:
            inputs.insert(0, f"the text on which the base model was trained first has digest {self.pretrained.text}")
        if self.profile:
            inputs.append(f"the words that users voted for are those of {self.profile}")
        inputs += [f"which version of the corpus was read ({named})" for named in self.corpus_version.values()]
        return tuple(f"Public input: {each}." for each in inputs)

    @property
    def public_figures(self) -> Mapping[str, Any]:
        """Figures of pretraining for metrics.json, measured on public text."""
        return {"pretraining": self.pretrained.figures} if self.pretrained else {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run a stage of the plan, or KeyError: it is announced, timed and logged, and mirrored when it ends."""
        self.plan.stage(name)
        with self.run.stage(name):
            self._await_machines(name)
            yield

    def _await_machines(self, stage: str) -> None:
        resources = self.recipe.resources
        if resources.address == LOCAL:
            return
        for needs in resources.stages:
            if needs.stage == stage:
                await_machines(needs, lambda sentence: self._say(f"{stage}: {sentence}"))

    def _say(self, sentence: str) -> None:
        self.run.console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)

    def track(self, done: Iterable[T], what: str) -> Iterator[T]:
        """Pass on pieces of work as they finish, and show their number as the count `what` of the plan."""
        self.progress.show(what, 0)
        for finished, piece in enumerate(done, start=1):
            self.progress.show(what, finished)
            yield piece

    def counter(self, what: str) -> Told:
        """A function to report how many pieces of a count of the plan are finished, for code that knows no run."""
        return lambda done: self.progress.show(what, done)

    def shard(self, folder: Path | None = None) -> ShardManifest:
        """Spread the corpus over the plan's shards by the unit of privacy, or find that done, and verify it.

        `folder` is private; by default it is `shards`, where everything else reads them.

        Raises:
            CorpusError: the source cannot be read as the recipe says.
            ShardError: the shards are not what the recipe, the key and the corpus make.
        """
        recipe, unit, corpus = self.recipe, self.recipe.privacy.unit, corpus_of(self.run)
        folder = folder or self.shards
        if corpus.source == recipe.corpus.source and (said := left_out(corpus)):  # of a copy nothing is
            self._say(said)
        with self.run.stage(f"{CORPUS_BY} {unit}"):
            self._await_machines(CORPUS)
            self.corpus = shard_corpus(
                corpus,
                self.key_path,
                self.plan.shards,
                self.plan.shards_per_part,
                folder,
                unit,
                self._planted(recipe.audit.canaries) if recipe.audit else None,
                by_place=self.plan.protection.is_word_for_word,
                version=version_of(self.run),
            )
            phrases = PhraseFile.of(corpus.phrases, self.key) if corpus.phrases else None
            verify_with_ray(folder, self.key_path, unit, phrases)
            self.progress.show(PARTS_SHARDED, self.plan.parts)
        return self.corpus

    def _planted(self, canaries: CanaryPlan) -> pa.Table:
        """Rows of user and text that an audit run adds to its corpus, after their plan was written down."""
        self.run.private(PLAN_FILE)  # `clean` deletes the plan too
        record_plan(self.run.root, canaries, self.key)
        return canary_rows(canaries, self.key)

    def load_model(self, **public_inputs: str) -> Backbone:
        """Load the base model, and hold the run to it and to other public inputs, digests by name.

        Raises:
            ConfigError: there is no such model, or an input has changed since the run began.
        """
        with self.run.stage(BASE_MODEL):
            self.base = self.tried_base or load_backbone(self.recipe.model)
            self.run.bind(base_model=self.base.digest, tokenizer=self.base.tokenizer_digest, **public_inputs)
        return self.base

    def asked(self, question: str) -> Asked:
        """What a release of this run reads and asks, which names its charge.

        `question` is the digest of everything that the private answer depends on beside the corpus, all of it public.
        """
        return Asked(self.corpus.corpus_digest(self.key), question)

    def release_votes(
        self, stage: str, mechanism: VoteMechanism, sums: Private[Any], manifest: VoteManifest, *, question: str
    ) -> Released[Any]:
        """Release the summed votes of all teachers, for a stage; see `Gate.release_votes` and `asked`."""
        identity, name, asked = self.plan.stage(stage).name, self.recipe.release_id, self.asked(question)
        released = self.gate.release_votes(name, mechanism, sums, manifest, asked=asked, stage=identity)
        self._charged(mechanism.event)
        return released

    def release_histogram(
        self, stage: str, mechanism: HistogramMechanism | Margins, sums: Private[Any], chunk: int = 0, *, question: str
    ) -> Released[Any]:
        """Release a histogram, int64 [cells], for a stage; see `Gate.release_histogram` and `asked`.

        `chunk` says which charge of the stage this is, from 1, where it is charged in chunks.
        """
        identity, name, asked = self.plan.stage(stage).name, self.recipe.release_id, self.asked(question)
        released = self.gate.release_histogram(name, mechanism, sums, chunk, asked=asked, stage=identity)
        self._charged(mechanism.event)
        return released

    def release_figures(
        self, stage: str, mechanism: FigureVectors, sums: Private[Any], *, question: str
    ) -> Released[Any]:
        """Release summed vectors of units, for a stage; see `Gate.release_figures` and `asked`."""
        identity, name, asked = self.plan.stage(stage).name, self.recipe.release_id, self.asked(question)
        released = self.gate.release_figures(name, mechanism, sums, asked=asked, stage=identity)
        self._charged(mechanism.event)
        return released

    def release_counts(
        self,
        stage: str,
        mechanism: ThresholdedCounts,
        sums: Private[KeySums],
        *,
        known: KnownKeys = (),
        question: str,
    ) -> Released[ReleasedCounts]:
        """Release how many units have each key, above a threshold; see `Gate.release_counts` and `asked`."""
        identity, name, asked = self.plan.stage(stage).name, self.recipe.release_id, self.asked(question)
        released = self.gate.release_counts(name, mechanism, sums, known=known, asked=asked, stage=identity)
        self._charged(mechanism.event)
        return released

    def make_way(self) -> None:
        """Delete certificate, cards and figures of another corpus, before this run writes its release."""
        forget_another_corpus(self.run.root, self.corpus.corpus_digest(self.key))

    def release_file(
        self, stage: str, event: DpEvent, name: str, write: Callable[[Path], None], *, question: str
    ) -> Path:
        """Charge a stage, and let it write a released file into the run directory, once; see `release.files`.

        `write` writes it, with fresh noise, to the path that it is given; for `question` see `asked`.
        """
        recipe = self.recipe
        release = FileRelease(
            account=recipe.privacy.account,
            release_id=recipe.release_id,
            inputs=self.file_inputs(stage, event, question=question),
            event=event,
            protection=self.plan.protection,
            path=self.run.root / name,
            scratch=self.run.private(f"unreleased-{name}"),
        )

        def written(path: Path) -> None:
            self.make_way()  # not before it is paid for: a refused release leaves the earlier one whole
            write(path)

        released = release_file(self.ledger, release, written)
        self._charged(event)
        return released.value

    def file_inputs(self, stage: str, event: DpEvent, *, question: str) -> str:
        """The keyed digest that names what a file of a stage is made of (see `release_file`)."""
        asked, parameters = self.asked(question), digest_json(to_json(event))
        return input_digest(
            self.key, "release-file", self.plan.stage(stage).name, asked.corpus, parameters, asked.question
        )

    def _charged(self, event: DpEvent) -> None:
        self.keep_ledger_head()
        account, name = self.recipe.privacy.account, self.recipe.release_id
        besides = charged_besides(self.ledger, account, name, event, self.plan.charges)
        if besides and not self.besides_said:
            self._say(besides)
            self.besides_said = True

    def keep_ledger_head(self) -> None:
        """Remember how far the ledger has come, so that a resumed run refuses one that was put back."""
        self.run.keep_ledger_head(self.ledger.head())
