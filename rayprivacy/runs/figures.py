"""The figures of users that a run may publish: measured at its end, released by one noisy sum, and read.

    released models, synthetic text -> what is asked of a user                      (public)
    users -> a vector each -> their sum -> RELEASE GATE, one charge                 (released)
    noisy sums -> figures with intervals -> metrics.json, certificate, report       (free)

Held-out users are asked how well models do on text that nobody learnt from. All others, who are many more, are asked
how synthetic text compares with theirs. Each half has cells of its own, with zeros in those of the other, so that
neither takes room from the other in a vector that is no longer than 1.

Privacy argument. All units take part, whatever their number: the first n of them would be another set when one joins. A
keyed coin of each user, with a public rate, decides who is held out, and so which cells are theirs. What a unit hands
in is a function of the unit and of what is public, to the last bit: each is read by itself, because in a batch with
others the rounding of its loss would depend on theirs, and of its rows the first count, in a keyed order of its own. So
one unit more or less moves the sums by its own vector, which `release.figure_vectors` bounds. A unit that is learnt
from changes the training, too: both are charged, one after the other, and models and text are public by then.

A run that is resumed finds the private sums, and the ledger serves the noise that was drawn: the question that names
the charge is made of what is asked, never of an answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.spatial.distance import cdist

from rayprivacy.accounting.events import to_json
from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.core.console import Told, nobody
from rayprivacy.core.files import SHARED, Json, read_json, write_atomic, write_json
from rayprivacy.core.private import Private, digest_json, digest_json_list
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import part_tables
from rayprivacy.dpsgd.units import Reading, Row
from rayprivacy.evaluation.fidelity import reaches
from rayprivacy.evaluation.language import length_summary, normal_words
from rayprivacy.evaluation.memorisation import GRAM
from rayprivacy.evaluation.settings import FiguresConfig
from rayprivacy.evaluation.shown import REMEDY, Distance, Layout, Mean, Part, Perplexity, Shown
from rayprivacy.generation.codes import Codes
from rayprivacy.models.backbone import Backbone, load_backbone, tokenizer_rules
from rayprivacy.models.sentences import SentenceModel, packaged_on_one_thread
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import MODEL
from rayprivacy.runs.figures_plan import BY_MEANING, FIGURES, PARTS_ASKED, RECORDS
from rayprivacy.runs.measure import drawn_rows
from rayprivacy.runs.method import Method, Output
from rayprivacy.runs.sealing import SEAL, sealed
from rayprivacy.work.mapping import on_numbers

if TYPE_CHECKING:
    from rayprivacy.evaluation.shape import Shape

WHY = "sums over all users, released with noise that the account was charged for"
TEXTS, BY_VECTORS, TRIED = 100_000, 2000, 64  # synthetic texts that are read, embedded, and tried on models
NEIGHBOURS = 5  # of a text, to which its ball reaches
LOSS, SHARES, MEAN, SMALL = 1.0, 1.0, 0.5, 0.25  # weights: no figure is much further from its goal than others
BELOW, ABOVE, APART = 1.0, 3.0, 0.5  # nats per token from what is lost on synthetic text to the bounds
_STORED = np.dtype("<i8")
_STEP = "measuring figures of users"
Sums = npt.NDArray[np.int64]
Rows = Sequence[Row]
T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Some figures that are measured together."""

    parts: tuple[Part, ...]
    question: str  # digest of what a unit is asked beside them; public
    values: Callable[[Rows], list[Any]] = field(repr=False)  # the value of each for a unit, from its rows alone


@dataclass(frozen=True)
class Half:
    """The units that are held out, or all others: what they are asked, and the cells that are theirs."""

    who: str
    groups: tuple[Group, ...]
    before: int = 0  # cells of the other half, in front of theirs
    after: int = 0  # and behind

    @property
    def layout(self) -> Layout:
        """What they hand in."""
        return Layout(tuple(part for group in self.groups for part in group.parts), self.who)

    @property
    def question(self) -> list[Any]:
        """All that they are asked, as JSON values."""
        return [self.who, self.layout.described, [group.question for group in self.groups], RECORDS]

    def vector(self, rows: Rows) -> npt.NDArray[np.float64]:
        """What one of them hands in, with zeros in the cells of the other half."""
        own = rows[:RECORDS]
        values = [value for group in self.groups for value in group.values(own)]
        return np.pad(self.layout.vector(values), (self.before, self.after))

    def read(self, noisy: npt.NDArray[np.float64], std: float) -> tuple[list[Shown], list[str]]:
        """The figures that the noisy sums of both halves show of theirs, and sentences on what is left out."""
        return self.layout.read(noisy[self.before : len(noisy) - self.after], std)


def figures_of(context: RunContext[Any], method: Method, output: Output) -> Json:
    """Measure and release the figures of a run whose text is written, or find them released; empty without the block.

    Raises:
        BudgetRefusedError: the account has less left than they cost.
    """
    config: FiguresConfig | None = context.recipe.figures
    if config is None:
        return {}
    with context.stage(FIGURES):
        halves = _halves(context, method, output, config)
        cells = sum(half.layout.cells for half in halves)
        mechanism: FigureVectors = replace(context.plan.stage(FIGURES).mechanism, cells=cells)
        question = digest_json([half.question for half in halves])
        sums = _sums_of_corpus(context, halves, mechanism, question)
        noisy = context.release_figures(FIGURES, mechanism, sums, question=question).value
    read = [half.read(noisy, mechanism.sigma) for half in halves]
    shown, left_out = ([each for found in side for each in found] for side in zip(*read, strict=True))
    left_out += [f"To see more, {REMEDY}."] if left_out else []
    left_out += [] if any(half.groups for half in halves) else [f"Nothing measures {' and '.join(config.of)} here."]
    rows = [{"name": each.name, "value": each.value, "interval": [each.low, each.high]} for each in shown]
    event = to_json(mechanism.event)
    return {"releasable": True, "why": WHY, "stage": FIGURES, "event": event, "rows": rows, "left_out": left_out}


def named(found: Json) -> dict[str, str]:
    """The released figures as people should read them, by label, for the certificate and the cards."""
    rows = {
        f"Released with noise: {row['name']}": "{:.4g}, 95% interval {:.4g} to {:.4g}".format(
            row["value"], *row["interval"]
        )
        for row in found.get("rows", ())
    }
    left_out = found.get("left_out")
    return rows | ({"Released with noise, and not shown": " ".join(left_out)} if left_out else {})


def _halves(context: RunContext[Any], method: Method, output: Output, config: FiguresConfig) -> tuple[Half, Half]:
    """What held-out units are asked, and all others: what can be measured of what the run has released."""
    recipe, card, tests = context.recipe, method.card, list[Group]()
    path, labels = context.run.root / (card.texts or ""), output.codes.columns[:1] if output.codes else ()
    if not card.texts or not pq.read_metadata(path).num_rows:
        return halves_of((), (), str(recipe.privacy.unit))
    table = drawn_rows([path], TEXTS, pq.read_schema(path).names)
    if "perplexity" in config.of and card.has_language_model:
        released = ModelConfig(base=str(context.run.root / MODEL), dtype=recipe.model.dtype)
        models = {card.ours or "own": load_backbone(released, released=True)}
        others = {"base": context.base, "pretrained": context.pretrained and context.pretrained.backbone}
        models |= {name: backbone for name, backbone in others.items() if backbone}
        kept = context.run.public("figure-bounds.json")
        tests.append(of_models(models, method.reads(recipe), _spread(table.to_pylist(), TRIED), kept))
    if "accuracy" in config.of and output.codes and labels and len(table[labels[0]].unique()) > 1:
        tests.append(of_labels(output.codes, table.select(["text", *labels])))
    return halves_of(tests, [of_texts(table["text"].to_pylist(), config)], str(recipe.privacy.unit))


def halves_of(tests: Sequence[Group], compared: Sequence[Group], unit: str) -> tuple[Half, Half]:
    """Held-out units, on whom models are tested, and all others, with whose texts synthetic text is compared."""
    heldout, learnt = Half(f"held-out {unit}s", tuple(tests)), Half(f"{unit}s of training", tuple(compared))
    return replace(heldout, after=learnt.layout.cells), replace(learnt, before=heldout.layout.cells)


def of_models(models: Mapping[str, Backbone], reading: Reading, synthetic: Rows, kept: Path | None = None) -> Group:
    """What the first model loses on a unit's text, in nats per token, and how much more than each of the others.

    Bounds are narrow, and so is the noise. They lie around what models lose on synthetic text, which is public: they
    find it easier than real text (chat: by 1.4 nats), and differ on it much as they do there (0.35 and 0.33). They are
    part of the question that names the charge, so a file of the run keeps them: on another machine, where the same
    losses differ in their last digits, a run that is resumed would be charged for another question.
    """
    losses = [ModelLoss(each, reading.max_tokens, max_context=reading.max_context) for each in models.values()]

    def values(rows: Rows) -> list[Any]:
        texts, before = [reading.text(row, reading.versions - 1) for row in rows], [*map(reading.context, rows)]
        totals = [loss.totals(texts, before) for loss in losses]
        (own, *others), tokens = [float(nats.sum()) for nats, _ in totals], float(totals[0][1].sum())
        return [(own, tokens), *((own - other, tokens) for other in others)]

    own, *names = models
    weights = [[each.digest, tokenizer_rules(each.tokenizer)] for each in models.values()]
    asked = digest_json([weights, reading.max_tokens, reading.max_context])
    loss, *gaps = _centres(
        kept,
        digest_json([asked, digest_json_list("texts", [str(row["text"]) for row in synthetic])]),
        partial(values, synthetic),
    )
    parts = [Perplexity(f"perplexity of {own}", LOSS, loss - BELOW, loss + ABOVE)]
    for name, gap in zip(names, gaps, strict=True):
        reach = max(APART, abs(gap))  # the more models differ, the less evenly
        parts.append(Perplexity(f"perplexity of {own} over that of {name}", MEAN, gap - reach, gap + reach))
    return Group(tuple(parts), asked, values)


def _centres(kept: Path | None, of: str, losses: Callable[[], list[Any]]) -> list[float]:
    """What bounds lie around, rounded: found in the file if it is of the same models and text, and left there if not.

    A model that has diverged loses no number; any centre will do, and its users count as the upper bound.
    """
    if kept is not None and kept.exists() and (found := read_json(kept))["of"] == of:
        return [float(each) for each in found["centres"]]
    means = [nats / tokens for nats, tokens in losses()]
    centres = [round(mean, 1) if math.isfinite(mean) else 0.0 for mean in means]
    if kept is not None:
        write_json(kept, {"of": of, "centres": centres}, SHARED)
    return centres


def of_texts(texts: list[str], config: FiguresConfig) -> Group:
    """How a unit's texts compare with synthetic ones: lengths, topics, neighbours, and runs of words in common.

    Neighbours are found only where there are more synthetic texts than a ball reaches to.
    """
    sentences = SentenceModel.packaged() if {*BY_MEANING} & {*config.of} else None
    few = _spread(texts, BY_VECTORS)
    vectors = sentences.vectors(few) if sentences else None
    found: list[tuple[Part, Callable[[list[str], Any], Any]]] = []  # a measure is of texts and their vectors
    if "lengths" in config.of:
        found.append((_distance("lengths", _lengths(texts, None)), _lengths))
    if "topics" in config.of and sentences:
        from rayprivacy.evaluation.shape import Shape  # of the extra `eval`

        counted = partial(_topics, Shape.of(few, sentences, config.topics))
        found.append((_distance("topics", counted(few, vectors)), counted))
    if "recall" in config.of and vectors is not None and len(few) > NEIGHBOURS:
        found.append((Mean("recall", MEAN), partial(_recalled, vectors, reaches(vectors, NEIGHBOURS))))
    if "copied" in config.of:
        copied = Mean(f"copied: share of texts with {GRAM} words of synthetic text", MEAN)
        found.append((copied, partial(_copied, grams_of(texts))))
    asked = digest_json([digest_json_list("texts", texts), sentences and sentences.digest])
    values = partial(_compared, tuple(measure for _, measure in found), sentences is not None)
    return Group(tuple(part for part, _ in found), asked, values)


def _compared(measures: Sequence[Callable[[list[str], Any], Any]], by_meaning: bool, rows: Rows) -> list[Any]:
    """The values of a unit; a function of the module, which travels to where the rows are."""
    own = [str(row["text"]) for row in rows]
    seen = packaged_on_one_thread().vectors(own) if by_meaning else None
    return [measure(own, seen) for measure in measures]


def of_labels(codes: Codes, table: pa.Table) -> Group:
    """How often a classifier that learnt from synthetic text finds the first label of a unit's text.

    A value on no public list is `other`, as it was in training.
    """
    from rayprivacy.evaluation.words import classifier  # of the extra `eval`

    label, (texts, labels) = codes.columns[0], (column.to_pylist() for column in table.columns)
    guess = classifier(texts, labels)

    def values(rows: Rows) -> list[Any]:
        wanted = np.array([codes.labels(codes.index(row))[label] for row in rows])
        return [float(np.mean(guess.predict([str(row["text"]) for row in rows]) == wanted))]

    part = Mean("accuracy of a classifier trained on synthetic text", SMALL)
    return Group((part,), digest_json([digest_json_list("labels", labels), codes.digest]), values)


def _distance(name: str, counts: npt.NDArray[Any]) -> Distance:
    return Distance(f"{name}: total variation", SHARES, tuple((counts / counts.sum()).tolist()))


def _lengths(texts: list[str], _vectors: Any) -> npt.NDArray[Any]:
    return np.array(length_summary(texts)["histogram"]["counts"])


def _topics(shape: "Shape", texts: list[str], vectors: Any) -> npt.NDArray[Any]:
    return np.bincount(shape.topics(vectors), minlength=len(shape.centres))


def _recalled(synthetic: npt.NDArray[Any], reach: npt.NDArray[Any], _texts: list[str], vectors: Any) -> float:
    """The share of texts that lie nearer to a synthetic one than its `NEIGHBOURS`-th neighbour among these does."""
    return float((cdist(vectors, synthetic) <= reach).any(axis=1).mean())


def _copied(known: npt.NDArray[np.uint64], texts: list[str], _vectors: Any) -> float:
    """The share of texts that have a run of words among the known ones."""
    own = [grams_of([text]) for text in texts] if len(known) else []
    return sum(bool((known.take(np.searchsorted(known, each), mode="clip") == each).any()) for each in own) / len(texts)


def grams_of(texts: list[str]) -> npt.NDArray[np.uint64]:
    """Digests of the runs of `GRAM` words in some texts, each once, ascending."""
    words = map(normal_words, texts)
    runs = (" ".join(own[at : at + GRAM]) for own in words for at in range(len(own) - GRAM + 1))
    digests = b"".join(blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).digest() for run in runs)
    return np.unique(np.frombuffer(digests, "<u8"))


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Some of the items, at equal distances."""
    return [items[place] for place in np.linspace(0, len(items) - 1, min(most, len(items))).astype(int)]


def _sums_of_corpus(
    context: RunContext[Any], halves: tuple[Half, Half], mechanism: FigureVectors, question: str
) -> Private[Sums]:
    """The private sums, which are kept: a run that is resumed does not read its users again."""
    made_of = [context.corpus.corpus_digest(context.key), question, mechanism.parameters]
    path = context.run.private(f"figures-{digest_json(made_of)[:16]}")
    if not path.exists():
        told = context.counter(PARTS_ASKED)
        sums = figure_sums(context.shards, context.plan.parts, halves, mechanism, told)
        write_atomic(path, sums.reveal().astype(_STORED).tobytes())
    return Private(np.frombuffer(path.read_bytes(), _STORED).astype(np.int64))


def figure_sums(
    shards: Path, parts: int, halves: tuple[Half, Half], mechanism: FigureVectors, told: Told = nobody
) -> Private[Sums]:
    """The private sums [cells] of the vectors of all units: here those that are held out, and a Ray task for each part.

    Raises:
        RayPrivacyError: a task failed; nothing was charged for it.
    """
    heldout, learnt = halves
    total = part_sums((shards, heldout, mechanism), HOLDOUT)
    told(1)
    asked = (shards.absolute(), learnt, mechanism)
    for done, (_, sums) in enumerate(on_numbers(part_sums, asked, range(parts), _STEP, SEAL), start=2):
        total += sums
        told(done)
    return Private(total)


@sealed(_STEP)
def part_sums(asked: tuple[Path, Half, FigureVectors], part: int) -> Sums:
    """The sums [cells] of one part of the corpus, of which one file at a time is in memory."""
    shards, half, mechanism = asked
    total = np.zeros(mechanism.cells, np.int64)
    for table in part_tables(shards, part):
        vectors = [half.vector(rows) for rows in units_of(table, mechanism.unit)]
        total += mechanism.contribution(np.array(vectors, np.float64).reshape(-1, mechanism.cells))
    return total


def units_of(table: pa.Table, unit: PrivacyUnit) -> Iterator[Rows]:
    """The rows of each user, or each row; those of a user stand together, in a keyed order of their own."""
    if unit is PrivacyUnit.RECORD:
        yield from ([row] for row in table.to_pylist())
    else:
        yield from (list(own) for _, own in groupby(table.to_pylist(), key=lambda row: row["user"]))
