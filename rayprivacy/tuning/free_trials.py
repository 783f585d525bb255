"""Trials of a search without a charge: which questions about a release are kept, and how their values are learnt.

A trial asks nothing. Questions, answers and judgements are those of the release, made once, and a trial selects among
them anew. What it reads are the files of the question set, and the public pairs and annotations of which it was made:
the private side of the run may be gone, and no ledger is opened.

Annotations are split by their documents, or by their passages where they name none: three fifths give rewards, and what
readers learn, and the others judge. All trials are judged by the same ones, so the best figure of many is too high by
what luck there is in a choice; it is never told without its interval, and without how many it was chosen among. A judge
of answers has learnt from all annotations; what it leaves out, it leaves out of all trials.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import Json, private_directory, read_json, write_json
from rayprivacy.core.private import digest_json
from rayprivacy.core.written import dump_yaml
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.evaluation.figures import mean_figure
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.questions.choosing import Choosing, Judged, Sets
from rayprivacy.questions.keep import may_be_kept
from rayprivacy.questions.public import ANNOTATIONS, MEASURED, annotations, public_pairs, rows_of_annotations
from rayprivacy.questions.settings import QuestionsConfig, parse_questions
from rayprivacy.runs.directory import RECIPE
from rayprivacy.runs.files import overridden
from rayprivacy.runs.questions import require_finished, whole_set
from rayprivacy.runs.questions_folder import TABLE
from rayprivacy.runs.questions_plan import STAGES, begun_with, check_questions
from rayprivacy.runs.questions_stages import public_base
from rayprivacy.tuning.budgeted import Owed
from rayprivacy.tuning.space import FREE_KEYS, Space, flat
from rayprivacy.tuning.trainable import UTILITY
from rayprivacy.tuning.trials import Values

LEAST_GROUPS = 10  # of annotations, of which four judge
_READ = ("question", "context", "evidence_start", "attribution")  # columns of a set
_BY = "questions.keep.by"


@dataclass(frozen=True)
class FreeTrials:
    """All trials of one search; travels to the trials' actors."""

    space: Space
    root: Path  # folder of the search
    command: str  # that asked the questions
    base: Json  # the keys of the set, as the space fixes them
    asked: pa.Table
    sets: Sets = field(repr=False)
    read: str  # a digest of all that trials read
    _running: dict[str, Iterator[Judged]] = field(init=False, repr=False, compare=False, default_factory=dict)

    @staticmethod
    def of(space: Space, root: Path) -> "FreeTrials":
        """Read a release, and refuse what trials cannot be made of."""
        place, here = Path(space.release).resolve(), Path.cwd()
        if root.resolve().is_relative_to(place):
            raise ConfigError(f"--out is {root}, which is the release, or lies in it: name a folder of its own.")
        table, corpus, command = _release(place.relative_to(here) if place.is_relative_to(here) else place)
        base = overridden(begun_with(table.parent), flat(space.fixed))
        settings = parse_questions(base)
        if settings.pairs is None or settings.value.annotations is None:
            missing = "questions.pairs.source" if settings.pairs is None else ANNOTATIONS
            raise ConfigError(
                f"{place} was asked without {missing}, from which the readers of trials learn: ask with"
                f" `{command} -o {missing}=FILE`."
            )
        check_questions(settings, corpus)
        asked, annotated = pq.read_table(table), annotations(settings.value.annotations)
        pairs = public_pairs(settings.pairs)
        sets = Sets.about(asked, public_base(settings.asker), pairs, annotated, settings.seed)
        if (found := len(np.unique(sets.groups))) < LEAST_GROUPS:
            raise ConfigError(
                f"{ANNOTATIONS} are of {found} documents, of which two fifths judge trials: annotate"
                f" {LEAST_GROUPS} or more."
            )
        read = digest_json([asked.select(_READ).to_pylist(), pairs, rows_of_annotations(annotated)])
        return FreeTrials(space, root, command, base, asked, sets, read)

    @property
    def shape(self) -> Json:
        """What a search that goes on must have in common with the one that began: also what trials read."""
        own = {key: value for key, value in flat(self.base).items() if key.startswith((*FREE_KEYS, "questions.seed"))}
        others = {key: value for key, value in own.items() if key not in self.space.search}
        return self.space.shape("trials", "concurrent") | {"read": digest_json([others, self.read])}

    def settings(self, values: Values) -> QuestionsConfig:
        """The settings of a trial; ConfigError where a value is out of range, or a selection cannot be judged."""
        settings = parse_questions(overridden(self.base, values))
        if settings.keep.by == MEASURED:
            raise ConfigError(
                f"{_BY} is '{MEASURED}', which chooses by the annotations that judge trials: set it under `fixed`, to"
                " 'value' say, or search it."
            )
        if settings.keep.by == "likelihood" and self.asked["likelihood"].null_count:
            raise ConfigError(f"{_BY} is 'likelihood', and the release has none: set 'value', or ask with it first.")
        return settings

    def name(self, values: Values) -> str:
        """What tells a trial from others."""
        return f"questions-{digest_json(self.settings(values).model_dump(mode='json'))[:16]}"

    def bill(self, values: Values) -> list[Owed]:
        """What a trial will charge, which is nothing; ConfigError for one that cannot be run."""
        self.settings(values)
        return []

    def epsilon(self, values: Values) -> None:
        """What a trial asks for: no privacy."""

    def reports(self, values: Values) -> int:
        """How often a trial reports: after each estimator of values if trials are pruned, else once."""
        settings = self.settings(values)
        return settings.value.estimators if self.space.pruning and settings.keep.by == "value" else 1

    def report(self, values: Values, number: int) -> Json:
        """Go on with a trial to one of its reports, the first of which is 1, and measure what it keeps."""
        name = self.name(values)
        if name not in self._running:
            self._running[name] = self._choosing(values).judged()
        found = next(self._running[name]) if self.space.pruning else [*self._running[name]][-1]
        if not found.kept:
            raise RayPrivacyError("a trial keeps no question: search other keys, or larger shares.")
        write_json(self._file(name), {"values": dict(values), "kept": found.kept, "found": found.found.tolist()})
        return {UTILITY: float(found.found.mean()), "done": number >= self.reports(values)}

    def best(self, values: Values) -> str:
        """The keys of a set that is kept so, as YAML."""
        return dump_yaml(overridden({}, self._changed(values)))

    def said(self, values: Values, among: int) -> str:
        """How the set of the best trial is made, and what its figure is worth: a line each."""
        changed = self._changed(values).items()
        written = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changed)
        options = " ".join(f"-o {shlex.quote(each)}" for each in written)
        found = np.array(read_json(self._file(self.name(values)))["found"])
        whole = next(self._choosing({_BY: "none"}).judged())
        own, every, more = (self._figure(each, whole) for each in (found, whole.found, found - whole.found))
        return (
            f"{self.command} {options}\n"
            f"{self.space.metric.name} {own}, chosen among {among} trials by the same annotations: a little too high\n"
            f"with all questions kept {every}, a difference of {more}\n"
            f"95% intervals over the {len(np.unique(whole.groups))} documents that judge"
        )

    def _changed(self, values: Values) -> Json:
        return flat(self.space.fixed) | dict(values)

    def _figure(self, found: npt.NDArray[np.float64], judged: Judged) -> str:
        figure = mean_figure(found, judged.groups, self.space.seed)
        return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"

    def _choosing(self, values: Values) -> Choosing:
        settings = parse_questions(overridden(self.base, values))
        labels = self.asked["attribution"].to_pylist() if settings.judge else None
        eligible = may_be_kept(self.asked["question"].to_pylist(), labels, settings.keep)
        return Choosing(self.sets, eligible, settings, self.asked["likelihood"].to_numpy(), actors=0)

    def _file(self, name: str) -> Path:
        return private_directory(self.root / "trials") / f"{name}.json"


def _release(place: Path) -> tuple[Path, CorpusConfig | None, str]:
    """The questions of a release, the private corpus behind it, if there is one, and the command that asked them."""
    inputs = read_json(place / STAGES).get("inputs", {}) if (place / STAGES).is_file() else {}
    if "source" in inputs:  # about public text
        options = {"--public": "source", "--text": "text", "--document": "document"}
        named = {option: inputs[key] for option, key in options.items()} | {"--out": place}
        words = [word for name, value in named.items() if value is not None for word in (name, str(value))]
        command = shlex.join(["rayprivacy", "questions", *words])
        if "counts" not in read_json(place / STAGES):
            raise ConfigError(f"{place} holds no finished questions: finish them with `{command} --resume`.")
        return place / TABLE, None, command
    require_finished(place)
    recipe = load_recipe(place / RECIPE)
    if not method_of(recipe).card.texts:
        raise ConfigError(f"{place} holds no text to ask about: its method, {recipe.method}, releases none.")
    command = shlex.join(["rayprivacy", "questions", str(place)])
    return whole_set(place), CorpusConfig(source=recipe.corpus.source), command
