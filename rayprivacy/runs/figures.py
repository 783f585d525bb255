"""The figures of held-out users that a run may publish: measured at its end, released by one noisy sum, and read.

    released models, synthetic text -> what is asked of a held-out user             (public)
    held-out users -> a vector each -> their sum -> RELEASE GATE, one charge        (released)
    noisy sums -> figures with intervals -> metrics.json, certificate, report       (free)

Privacy argument. All held-out units take part, whatever their number: the first n of them would be another set when one
joins. A keyed coin of each user, with a public rate, decides who is held out. What a unit hands in is a function of the
unit and of what is public, to the last bit: each is read by itself, because in a batch with others the rounding of its
loss would depend on theirs. So one unit more or less moves the sums by its own vector, which `release.figure_vectors`
bounds. A unit changes the training, which its own charges cover, or these sums, and never both; both are charged, one
after the other, which is an upper bound.

A run that is resumed finds the private sums, and the ledger serves the noise that was drawn: the question that names
the charge is made of what is asked, never of an answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.spatial.distance import cdist

from rayprivacy.accounting.events import to_json
from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.core.console import Told
from rayprivacy.core.files import Json, write_atomic
from rayprivacy.core.private import Private, digest_json, digest_json_list
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import part_tables
from rayprivacy.dpsgd.units import Reading, Row
from rayprivacy.evaluation.fidelity import reaches
from rayprivacy.evaluation.language import length_summary, normal_words
from rayprivacy.evaluation.memorisation import GRAM
from rayprivacy.evaluation.settings import FiguresConfig
from rayprivacy.evaluation.shown import Distance, Layout, Mean, Part, Perplexity
from rayprivacy.generation.codes import Codes
from rayprivacy.models.backbone import Backbone, load_backbone, tokenizer_rules
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import MODEL, Run
from rayprivacy.runs.figures_plan import BY_MEANING, FIGURES, GROUPS, GROUPS_SHOWN
from rayprivacy.runs.measure import drawn_rows
from rayprivacy.runs.method import Method, Output
from rayprivacy.runs.sealing import sealed

if TYPE_CHECKING:
    from rayprivacy.evaluation.shape import Shape

WHY = "sums over all held-out users, released with noise that the account was charged for"
TEXTS, BY_VECTORS, NEIGHBOURS = 100_000, 2000, 5  # synthetic texts that are read, and embedded; of a text's ball
OWN, OTHER, SHARES, SMALL = 1.5, 0.75, 1.0, 0.25  # weights: of the run's own model, of others, of shares, of the rest
_STORED = np.dtype("<i8")
_STEP = "measuring figures of held-out users"
Sums = npt.NDArray[np.int64]
Rows = Sequence[Row]


@dataclass(frozen=True)
class Group:
    """Some figures that are measured together."""

    parts: tuple[Part, ...]
    question: str  # digest of what a unit is asked beside them; public
    values: Callable[[Rows], list[Any]] = field(repr=False)  # the value of each for a unit, from its rows alone


def figures_of(context: RunContext[Any], method: Method, output: Output) -> Json:
    """Measure and release the figures of a run whose text is written, or find them released; empty without the block.

    Raises:
        BudgetRefusedError: the account has less left than they cost.
    """
    config: FiguresConfig | None = context.recipe.figures
    if config is None:
        return {}
    with context.stage(FIGURES):
        groups = list(_groups(context, method, output, config))
        layout = Layout(tuple(part for group in groups for part in group.parts), str(context.recipe.privacy.unit))
        mechanism: FigureVectors = replace(context.plan.stage(FIGURES).mechanism, cells=layout.cells)
        question = digest_json([layout.described, *(group.question for group in groups)])
        sums = _sums_of_corpus(context, groups, layout, mechanism, question)
        noisy = context.release_figures(FIGURES, mechanism, sums, question=question).value
    shown, left_out = layout.read(noisy, mechanism.sigma)
    left_out += [] if layout.parts else [f"The run has nothing to measure {' and '.join(config.of)} by."]
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


def _groups(context: RunContext[Any], method: Method, output: Output, config: FiguresConfig) -> Iterator[Group]:
    """What can be measured of what the run has released, in a fixed order."""
    recipe, card = context.recipe, method.card
    if "perplexity" in config.of and card.has_language_model:
        reading = method.reads(recipe)
        released = ModelConfig(base=str(context.run.root / MODEL), dtype=recipe.model.dtype)
        own = load_backbone(released, released=True)
        pretrained = context.pretrained.backbone if context.pretrained else None
        models = (("base", OTHER, context.base), ("pretrained", OTHER, pretrained), (card.ours or "own", OWN, own))
        for name, weight, backbone in models:
            if backbone is not None:
                yield of_model(Perplexity(f"perplexity of {name}", weight, config.max_loss), backbone, reading)
    if not card.texts:
        return
    columns = ["text", *(output.codes.columns[:1] if output.codes else ())]
    table = drawn_rows([context.run.root / card.texts], TEXTS, columns)
    yield of_texts(table["text"].to_pylist(), config)
    if "accuracy" in config.of and output.codes and len(columns) == 2 and len(table[1].unique()) > 1:
        yield of_labels(output.codes, table)


def of_model(part: Part, backbone: Backbone, reading: Reading) -> Group:
    """What a language model loses on a unit's text: the mean over all tokens, in nats."""
    loss = ModelLoss(backbone, reading.max_tokens, max_context=reading.max_context)

    def values(rows: Rows) -> list[Any]:
        texts = [reading.text(row, reading.versions - 1) for row in rows]
        total, tokens = loss.totals(texts, [reading.context(row) for row in rows])
        return [float(total.sum() / tokens.sum())]

    asked = [backbone.digest, tokenizer_rules(backbone.tokenizer), reading.max_tokens, reading.max_context]
    return Group((part,), digest_json(asked), values)


def of_texts(texts: list[str], config: FiguresConfig) -> Group:
    """How a unit's texts compare with synthetic ones: lengths, topics, neighbours, and runs of words in common.

    Neighbours are found only where there are more synthetic texts than a ball reaches to.
    """
    sentences = SentenceModel.packaged() if {*BY_MEANING} & {*config.of} else None
    few = [texts[place] for place in np.linspace(0, len(texts) - 1, min(BY_VECTORS, len(texts))).astype(int)]
    vectors = sentences.vectors(few) if sentences else None
    found: list[tuple[Part, Callable[[list[str], Any], Any]]] = []  # a measure is of texts and their vectors
    if "lengths" in config.of:
        found.append((_distance("lengths", _lengths(texts, None)), _lengths))
    if "topics" in config.of and sentences:
        from rayprivacy.evaluation.shape import Shape  # of the extra `eval`

        counted = partial(_topics, Shape.of(few, sentences, config.topics))
        found.append((_distance("topics", counted(few, vectors)), counted))
    if "recall" in config.of and vectors is not None and len(few) > NEIGHBOURS:
        found.append((Mean("recall", SMALL), partial(_recalled, vectors, reaches(vectors, NEIGHBOURS))))
    if "copied" in config.of:
        found.append((Mean(f"copied: share of texts with {GRAM} words of synthetic text", SMALL), _copied(texts)))

    def values(rows: Rows) -> list[Any]:
        own = [str(row["text"]) for row in rows]
        seen = sentences.vectors(own) if sentences else None
        return [measure(own, seen) for _, measure in found]

    asked = digest_json([digest_json_list("texts", texts), sentences and sentences.digest])
    return Group(tuple(part for part, _ in found), asked, values)


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


def _copied(synthetic: list[str]) -> Callable[[list[str], Any], float]:
    known = {gram for text in synthetic for gram in _grams(text)}
    return lambda texts, _vectors: float(np.mean([any(gram in known for gram in _grams(text)) for text in texts]))


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = normal_words(text)
    return (tuple(words[at : at + GRAM]) for at in range(len(words) - GRAM + 1))


def _sums_of_corpus(
    context: RunContext[Any], groups: Sequence[Group], layout: Layout, mechanism: FigureVectors, question: str
) -> Private[Sums]:
    """The private sums, which are kept: a run that is resumed does not read its held-out users again."""
    made_of = [context.corpus.corpus_digest(context.key), question, mechanism.parameters]
    path = context.run.private(f"figures-{digest_json(made_of)[:16]}")
    if not path.exists():
        sums = figure_sums(context.run, groups, layout, mechanism, context.counter(GROUPS_SHOWN))
        write_atomic(path, sums.reveal().astype(_STORED).tobytes())
    return Private(np.frombuffer(path.read_bytes(), _STORED).astype(np.int64))


@sealed(_STEP)
def figure_sums(
    run: Run[Any], groups: Sequence[Group], layout: Layout, mechanism: FigureVectors, told: Told
) -> Private[Sums]:
    """The private sums [cells] of the vectors of all held-out users (or records)."""
    values: list[list[Any]] = [[] for _ in units_of(run, mechanism.unit)]
    for number, group in enumerate(groups):
        told(number)
        for own, rows in zip(values, units_of(run, mechanism.unit), strict=True):
            own += group.values(rows)
    told(GROUPS)
    vectors = np.array([layout.vector(own) for own in values], np.float64).reshape(-1, layout.cells)
    return Private(mechanism.contribution(vectors))


def units_of(run: Run[Any], unit: PrivacyUnit) -> Iterator[Rows]:
    """The rows of each held-out user, or each row; files are sorted by user, and a user is in one of them."""
    for table in part_tables(run.private("shards"), HOLDOUT):
        if unit is PrivacyUnit.RECORD:
            yield from ([row] for row in table.to_pylist())
        else:
            yield from (list(own) for _, own in groupby(table.to_pylist(), key=lambda row: row["user"]))
