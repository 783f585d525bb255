"""The value of questions (QVE; Yue et al., ACL 2022, table 7.2 of the thesis) beside other ways to choose among them.

    python benchmarks/questions_table.py --system qve --data DIR --work WORK [--noise 0.4 0.2 0] [--asked FILE] --json

An evidence reader learns from 200 public questions (`theta0`), then from a selection of 4,000 questions of other
articles of which a share was moved to another sentence of their passage, then from 623 annotations (`+D^t`: without
those in the middle), and is tested on the other 24 articles of XQuAD. A seed draws the 200, the 4,000, what is moved
and all that is learnt; an accuracy is the mean of three orders of training. `begun` are the log-odds that values begin
at, without any reward; `value em` has the published reward; `overlap` is idf overlap alone, without a reader. Trials
that are in WORK already are not run again.

`measured` learns its values from three fifths of the annotated articles, and is chosen on the others.

With `--asked FILE`, a Parquet table of `question`, `sentence` and, if there is one, the asker's `likelihood`, a set of
questions that a model asked about sentences of the private part is measured like the planted ones; `people` are
people's questions about the same sentences.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from questions_claims import QVE_PAPER, qve, said
from squad import sentence_windows, source_and_target, splits

from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.spelling import ids_of
from rayprivacy.questions.estimator import Estimator, as_classes, as_ranking, contrasted, features, misplaced
from rayprivacy.questions.evidence_reader import Array, QuestionSet, SentenceVectors, beginning, scores, trained
from rayprivacy.questions.keep import candidates, measured, top
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.passages import sentences
from rayprivacy.questions.settings import ValueConfig
from rayprivacy.questions.value import Feedback, Learning, direction, values

SOURCE, WRITTEN, EPOCHS, ORDERS, SHARE = 200, 4000, 3, 3, 0.6
FEWER = (50, 200)  # annotations, of which the curve is made
Mask = npt.NDArray[np.bool_]
Rows = Sequence[tuple[str, Sequence[str], int]]


@dataclass(frozen=True)
class Sets:
    """Questions as arrays: of the source, of the target's articles, annotations, and the test with its articles."""

    source: QuestionSet
    target: QuestionSet
    annotated: QuestionSet
    test: QuestionSet
    annotated_articles: npt.NDArray[np.int64]
    test_articles: npt.NDArray[np.int64]
    asked: QuestionSet | None
    people: QuestionSet | None
    likelihood: npt.NDArray[np.float64] | None
    vectors: Callable[[Sequence[str]], Array]
    about_target: Callable[[Sequence[dict[str, Any]]], QuestionSet]  # of rows of question and sentence


def sets(data: Path, asked: Path | None = None) -> Sets:
    """All of them, with vectors and idf of the passages of source and target."""
    source, target = source_and_target(data)
    annotated = splits(data)
    windows = [sentence_windows(rows) for rows in (source, target)]
    known = [sentence for each in windows for window in each for sentence in window]
    backbone, idf = load_backbone(ModelConfig()), Idf.of(map(words, known))
    table = backbone.model.get_input_embeddings().weight.detach().float().numpy()

    def spelt(texts: Sequence[str]) -> list[list[int]]:
        return ids_of(backbone.tokenizer, [text.lower() for text in texts])  # the source is in lower case

    vectors = SentenceVectors.of(table, spelt(known))

    def vectors_of(texts: Sequence[str]) -> Array:
        return vectors(spelt(texts))

    def arrays(rows: Rows) -> QuestionSet:
        return QuestionSet.of(rows, vectors_of, idf)

    def about_target(rows: Sequence[dict[str, Any]]) -> QuestionSet:
        return arrays(_of_windows(rows, windows[1]))

    squad = [_of_squad(rows) for rows in (annotated.annotations, annotated.heldout)]
    articles = [
        np.unique([row["title"] for row in rows], return_inverse=True)[1]
        for rows in (annotated.annotations, annotated.heldout)
    ]
    own = pq.read_table(asked).to_pylist() if asked else []
    likelihood = np.array([row["likelihood"] for row in own]) if own and "likelihood" in own[0] else None
    about = {row["sentence"] for row in own}
    return Sets(
        *(arrays(_of_windows(rows, each)) for rows, each in zip((source, target), windows, strict=True)),
        *map(arrays, squad),
        *articles,
        about_target(own) if own else None,
        about_target([row for row in target if row["sentence"] in about]) if own else None,
        likelihood,
        vectors_of,
        about_target,
    )


def _of_windows(rows: Sequence[dict[str, Any]], windows: Sequence[Sequence[str]]) -> Rows:
    place = {sentence: (window, number) for window in windows for number, sentence in enumerate(window)}
    return [(row["question"], *place[row["sentence"]]) for row in rows]


def _of_squad(rows: Sequence[dict[str, Any]]) -> Rows:
    found = []
    for row in rows:
        spans, start = sentences(row["context"]), row["answers"]["answer_start"][0]
        evidence = max(number for number, (begins, _) in enumerate(spans) if begins <= start)
        found.append((row["question"], [row["context"][begins:ends] for begins, ends in spans], evidence))
    return found


@dataclass(frozen=True)
class Trial:
    """One seed on one set of written questions; `clean` are those that were not moved, if any were."""

    sets: Sets
    name: str
    seed: int
    written: QuestionSet
    clean: Mask | None
    settings: ValueConfig

    def start(self) -> Array:
        dice = self._dice(1)
        return trained(beginning(), self.sets.source[dice.permutation(len(self.sets.source))[:SOURCE]], dice, EPOCHS)

    def columns(self, theta: Array, annotated: QuestionSet) -> tuple[dict[str, npt.NDArray[Any]], Array]:
        """What is known of each written question by some annotations, and the reader of these."""
        dice = self._dice(2)
        reader = trained(theta, annotated, dice, EPOCHS)
        learning = Learning.of(Feedback(theta, self.written, annotated, self.settings), reader)
        good, bad = features(annotated, reader), features(misplaced(annotated, dice), reader)
        found = {
            "roundtrip": scores(reader[None], self.written)[0].argmax(axis=-1) == self.written.evidence,
            "begun": learning.seen[:, -1],
            "classifier": contrasted(good, bad, as_classes, dice)(learning.seen),
            "ranking": contrasted(good, bad, as_ranking, dice)(learning.seen),
        }
        if self.name == "asked" and self.sets.likelihood is not None:
            found["likelihood"] = self.sets.likelihood
        return found | {"value": values(learning, self.seed)}, reader

    def rows(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """A row for each arm, and what values say of the questions."""
        theta = self.start()
        columns, reader = self.columns(theta, self.sets.annotated)
        arms = candidates(columns, SHARE, self._dice(3))
        arms |= {f"value {share:.0%}": top(columns["value"], share) for share in (0.2, 0.5)}
        arms |= {"begun": top(columns["begun"], SHARE), "value em": top(self.with_em(theta, reader), SHARE)}
        if self.clean is not None and not self.clean.all():
            arms |= {"oracle": self.clean}
        readers = {name: self.served(theta, self.written[kept]) for name, kept in arms.items()}
        chosen, figures = self.measured(theta)
        readers |= {"measured": self.served(theta, self.written[chosen[1]])}
        readers |= {"theta0": [theta], "+D^t": [reader]}
        if self.name == "asked" and self.sets.people is not None:
            readers |= {"people": self.served(theta, self.sets.people)}
        overlap = np.zeros_like(theta)
        overlap[-1] = 1
        found = [self._row(name, np.stack(each)) for name, each in (readers | {"overlap": [overlap]}).items()]
        said = {"seed": self.seed, "measured": chosen[0], "judged": figures}
        return found, said | (self._said(columns, theta) if "oracle" in arms else {})

    def with_em(self, theta: Array, reader: Array) -> npt.NDArray[np.float64]:
        """Values by the published reward and rate."""
        published = self.settings.model_copy(update={"reward": "em", "inner_rate": 1.0})
        return values(Learning.of(Feedback(theta, self.written, self.sets.annotated, published), reader), self.seed)

    def served(self, theta: Array, kept: QuestionSet, annotated: QuestionSet | None = None) -> list[Array]:
        """Readers that learn from questions and then from annotations, in several orders."""
        found = []
        for order in range(ORDERS):
            dice = self._dice(4 + order)
            found.append(trained(trained(theta, kept, dice), annotated or self.sets.annotated, dice))
        return found

    def measured(self, theta: Array) -> tuple[tuple[str, Mask], dict[str, float]]:
        """The selection that is best on two fifths of the annotated articles, where the others give rewards."""
        articles = self.sets.annotated_articles
        order = self._dice(10).permutation(articles.max() + 1)
        rewarding = np.isin(articles, order[: round(0.6 * len(order))])
        annotated, judging = self.sets.annotated[rewarding], self.sets.annotated[~rewarding]
        columns, _ = self.columns(theta, annotated)
        found = candidates(columns, SHARE, self._dice(3))

        def served(kept: Mask) -> float:
            return float(right(np.stack(self.served(theta, self.written[kept], annotated)), judging).mean())

        best, figures = measured(found, served)
        return (best, found[best]), {name: round(figure, 4) for name, figure in figures.items()}

    def _said(self, columns: dict[str, npt.NDArray[Any]], theta: Array) -> dict[str, Any]:
        assert self.clean is not None
        kept = top(columns["value"], SHARE)
        found: dict[str, Any] = {f"auc_{name}": area(columns[name], self.clean) for name in columns}
        found |= {"auc": found.pop("auc_value"), "kept_corrupted": float((~self.clean[kept]).mean())}
        found |= {"roundtrip_kept": float(columns["roundtrip"].mean())}
        if self.name == "40%":
            one, whole = self.settings.model_copy(update={"estimators": 1}), self.sets.annotated
            nothing = Learning.of(Feedback(theta, self.written, whole, one), beginning())
            found |= {"auc_from_nothing": area(values(nothing, self.seed), self.clean)}
            order, curve = self._dice(11).permutation(len(whole)), {}
            for count in (*FEWER, len(whole)):
                known, _ = replace(self, settings=one).columns(theta, whole[order[:count]])
                curve[str(count)] = area(known["value"], self.clean)
            found |= {"auc_by_annotations": curve}
        return found

    def _row(self, arm: str, readers: Array) -> dict[str, Any]:
        answered = right(readers, self.sets.test)
        articles = self.sets.test_articles
        return {
            "noise": self.name,
            "seed": self.seed,
            "arm": arm,
            "accuracy": round(float(answered.mean()), 5),
            "right_by_article": np.bincount(articles, answered).round(2).tolist(),
            "asked_by_article": np.bincount(articles).tolist(),
        }

    def _dice(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])


def right(readers: Array, asked: QuestionSet) -> npt.NDArray[np.float64]:
    """The share of readers that find the evidence of each question."""
    return (scores(readers, asked).argmax(axis=-1) == asked.evidence).mean(axis=0)


def area(figures: npt.NDArray[Any], clean: Mask) -> float:
    """AUC: the chance that a clean question has the higher figure; equal ones count half."""
    ends = [np.searchsorted(np.sort(figures[~clean]), figures[clean], side) for side in ("left", "right")]
    return round(float(np.mean(ends) / (~clean).sum()), 4)


def planted(found: Sets, share: float, seed: int, settings: ValueConfig) -> Trial:
    """A trial on people's questions, a share of which are moved to another sentence of their passage."""
    dice = np.random.default_rng([seed, 0])
    written = found.target[dice.permutation(len(found.target))[:WRITTEN]]
    moved = (dice.random(len(written)) < share) & (written.real.sum(axis=1) > 1)
    evidence = written.evidence.copy()
    evidence[moved] = misplaced(written[moved], dice).evidence
    return Trial(found, f"{share:.0%}", seed, written.about(evidence), ~moved, settings)


def speed(trial: Trial, rounds: int = 5, iterations: int = 50) -> dict[str, float]:
    """CPU seconds of iterations of eight rollouts, and of eight times as many of one, in turns."""
    theta = trial.start()
    feedback = Feedback(theta, trial.written, trial.sets.annotated, trial.settings)
    learning, dice = Learning.of(feedback, theta), np.random.default_rng(0)
    estimator = Estimator(learning.seen.shape[1], 0.001, dice)
    order = dice.permutation(80).reshape(20, 4)

    def seconds(rollouts: int, times: int) -> float:
        begun = process_time()
        for _ in range(times):
            chosen = dice.choice(len(trial.written), 80, replace=False)
            seen = learning.seen[chosen]
            taken = (dice.random((rollouts, 80)) < 0.5).astype(np.float32)
            estimator.learn(seen, -direction(estimator(seen), taken, feedback.rewards(chosen, taken, order)))
        return process_time() - begun

    seconds(8, 5)
    pairs = [(seconds(8, iterations), seconds(1, 8 * iterations)) for _ in range(rounds)]
    together, alone = (float(np.median(side)) / iterations for side in zip(*pairs, strict=True))
    ratio = float(np.median([one / other for one, other in pairs]))
    return {
        "ms_of_8_rollouts": round(1000 * together, 2),
        "ms_of_8_of_one": round(1000 * alone, 2),
        "ratio": round(ratio, 3),
    }


def table(data: Path, seeds: Sequence[int], words: Sequence[str]) -> dict[str, Any]:
    """All rows, what they show, and how fast an iteration is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, nargs="*", default=[0.4, 0.2, 0.0])
    parser.add_argument("--asked", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=ValueConfig().iterations)
    parser.add_argument("--estimators", type=int, default=ValueConfig().estimators)
    arguments = parser.parse_args(words)
    arguments.work.mkdir(parents=True, exist_ok=True)
    settings = ValueConfig(iterations=arguments.iterations, estimators=arguments.estimators)
    found = sets(data, arguments.asked)
    trials = [planted(found, share, seed, settings) for share in arguments.noise for seed in seeds]
    if found.asked is not None:
        trials += [Trial(found, "asked", seed, found.asked, None, settings) for seed in seeds]
    rows: list[dict[str, Any]] = []
    said: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        own, of_values = _kept(trial, arguments.work)
        rows += own
        said.setdefault(trial.name, []).append(of_values)
    return {
        "system": "qve",
        "settings": settings.model_dump(),
        "means": means(rows),
        "claims": qve(rows, said),
        "values": said,
        "speed": speed(trials[0]),
        "paper_em": QVE_PAPER,
        "rows": [{name: each for name, each in row.items() if "article" not in name} for row in rows],
    }


def _kept(trial: Trial, work: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    path = work / f"qve-{trial.name.rstrip('%')}-{trial.seed}.json"
    if not path.exists():
        path.write_text(json.dumps(trial.rows(), allow_nan=False))
    own, said = json.loads(path.read_text())
    return own, said


def means(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The mean accuracy of each arm on each set."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["noise"], {}).setdefault(row["arm"], []).append(row["accuracy"])
    return {noise: {arm: round(float(np.mean(each)), 4) for arm, each in arms.items()} for noise, arms in found.items()}


def shown(found: dict[str, Any]) -> list[str]:
    """The table in lines of text."""
    lines = [
        f"{noise:>6}  {arm:<12} {figure:.4f}" for noise, arms in found["means"].items() for arm, figure in arms.items()
    ]
    return [*lines, *map(said, found["claims"]), f"an iteration: {found['speed']}"]
