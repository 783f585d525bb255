"""Asking with and without predicted phrases (QPP; Yue et al., BIBM 2021), on the packaged base and SQuAD's sentences.

    python benchmarks/questions_table.py --system cliniqg --data DIR --work WORK [--seeds 0 1] [--evidences 150] --json

Two askers learn from public pairs: one that begins its questions itself (greedy, beam, top-k, nucleus), and one that
predicts phrases and is told one (qpp). The first takes as many steps as make it read as many questions. Both are asked
about sentences of other articles, of which people's questions are known; a seed draws the order of the pairs and the
sentences. Greedily there is one question of an evidence, otherwise there are three. What is in WORK is not made again.

- `kl`: of types of questions, from those of the public pairs, in nats x 100; `people` are not at 0, being few;
- `first_words`: distinct first words of the questions about an evidence;
- `alike`: the share of questions whose evidence a reader of 1,000 public questions finds in its passage;
- `accuracy`: evidence found on all of XQuAD by a reader that learnt from an arm alone, mean of three orders;
- `recall`: the share of an evidence's real phrases that are in its set of three (questions_phrases.py).

`--asked FILE` writes the questions behind drawn phrases of all seeds, with their likelihoods, for --system qve.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import questions_qve as qve
import torch
from questions_asking_claims import PAPER_KL, asking
from questions_claims import said
from questions_phrases import CHANCE, by_frequency, hits, likeliest, relevance
from squad import source_and_target

from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.core.console import nobody
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.generation.text_writers import WritingTask, load_saved, writer_of
from rayprivacy.generation.writing import Prompts
from rayprivacy.models.asked import Pair, asked
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.asker import ASK, PREDICT, Writer, behind, kept_asker, known_phrases, predicted
from rayprivacy.questions.evidence import EVIDENCE
from rayprivacy.questions.evidence_reader import beginning, scores, trained
from rayprivacy.questions.phrases import Phrases, divergence, divergence_of_types, question_type
from rayprivacy.questions.settings import AskerConfig, PhrasesConfig

MOST, MANY, SHOWN, TOKENS, REPLICATES, ANEW = 3, 16, 6, 32, 200, 20
SOURCES, ORDERS = (250, 1000), 3
GREEDY = SamplingConfig(max_tokens=TOKENS, top_k=1, top_p=1.0)
ARMS: Mapping[str, tuple[str, SamplingConfig]] = {
    "greedy": ("none", GREEDY),
    "beam 3": ("none", GREEDY),
    "top-k 20": ("none", SamplingConfig(max_tokens=TOKENS, top_k=20, top_p=1.0)),
    "nucleus .95": ("none", SamplingConfig(max_tokens=TOKENS, top_k=2000, top_p=0.95)),
    "qpp drawn": ("predicted", GREEDY),
    "qpp greedy": ("greedy", GREEDY),
    "qpp likeliest": ("predicted", GREEDY),
}
Row = dict[str, Any]
Told = tuple[int, str, str]  # the number of an evidence, a phrase, a question behind it


@dataclass(frozen=True)
class Sets:
    """Public pairs, and the sentences that are asked about with people's questions about each."""

    pairs: list[Pair]
    evidence: list[str]
    people: list[list[str]]


def sets(data: Path, evidences: int, seed: int) -> Sets:
    source, target = ([(row["sentence"], row["question"]) for row in rows] for rows in source_and_target(data))
    about: dict[str, list[str]] = {}
    for sentence, question in target:
        about.setdefault(sentence, []).append(question)
    fit = [sentence for sentence in about if 5 <= len(sentence.split()) <= 60]
    drawn = np.random.default_rng(seed).permutation(len(fit))[:evidences]
    evidence = [fit[place] for place in sorted(drawn.tolist())]
    order = np.random.default_rng([seed, 1]).permutation(len(source))  # another seed is another asker
    return Sets([source[place] for place in order], evidence, [about[sentence] for sentence in evidence])


def table_of(texts: Sequence[str]) -> pa.Table:
    columns = {
        "document": range(len(texts)),
        "passage": [f"p{number}" for number in range(len(texts))],
        "title": [""] * len(texts),
        "context": texts,
        "evidence": texts,
        "evidence_start": [0] * len(texts),
    }
    return pa.table({name: pa.array(values, EVIDENCE.field(name).type) for name, values in columns.items()})


class Here(Writer):
    """A writer in this process: Ray's start takes longer than a few hundred texts."""

    def __call__(self, name: str, prompts: Prompts, sampling: SamplingConfig) -> list[tuple[int, str]]:
        config = sampling.model_copy(update={"seed": crc32(f"{self.seed} {name}".encode())})
        task = WritingTask(self.model.absolute(), config, "transformers", 1, self.model.absolute())
        written = writer_of(task)([text for _, text in prompts], config)
        return [(cell, text) for (cell, _), (text, reason) in zip(prompts, written, strict=True) if not reason]


@dataclass(frozen=True)
class Bench:
    """All arms of one seed."""

    found: Sets
    backbone: Backbone
    work: Path
    steps: int
    seed: int
    many: int = MANY
    arms: Sequence[str] = tuple(ARMS)

    @property
    def known(self) -> Phrases:
        """The phrases of the public pairs."""
        known = self.asker("predicted")[2]
        assert known is not None
        return known

    def asker(self, how: str) -> tuple[AskerConfig, PhrasesConfig, Phrases | None]:
        settings = PhrasesConfig.parse({"how": how, "most": MOST})
        known = known_phrases(self.found.pairs, settings)
        questions = len(self.found.pairs)
        share = 1.0 if known else questions / (questions + len({evidence for evidence, _ in self.found.pairs}))
        return AskerConfig(steps=round(share * self.steps)), settings, known

    def model(self, how: str) -> Path:
        asker, settings, _ = self.asker(how)
        return kept_asker(self.backbone, self.found.pairs, asker, settings, nobody, self.work, "benchmark")

    def path(self, name: str) -> Path:
        return self.work / f"{name} {self.seed}.json"

    def arm(self, name: str) -> tuple[list[list[str]], list[Told]]:
        """The sets of phrases, where there are any, and the questions."""
        path = self.path(name)
        if not path.exists():
            path.write_text(json.dumps(self._made(name)))
        phrases, told = json.loads(path.read_text())
        return phrases, [(number, phrase, question) for number, phrase, question in told]

    def _made(self, name: str) -> tuple[list[list[str]], list[Told]]:
        how, sampling = ARMS[name]
        asker, settings, known = self.asker(how)
        writer, texts = Here(self.model(how), self.work, 1, "transformers", self.seed), self.found.evidence
        if name == "beam 3":
            return [], self._beams(writer.model, asker)
        if name == "qpp likeliest":
            prompts = [
                (row, asked(PREDICT, text, writer.documents, asker.max_tokens)) for row, text in enumerate(texts)
            ]
            drawing = SamplingConfig(max_tokens=asker.question_tokens, top_p=1.0)
            draws = writer("draws", [each for each in prompts for _ in range(self.many)], drawing)
            phrases = likeliest(draws, len(texts), self.known, MOST)
        else:
            phrases = predicted(writer, texts, asker, settings, known) if known else []
        sets = phrases or [[""] * (1 if sampling is GREEDY else MOST)] * len(texts)
        table = behind(writer, table_of(texts), sets, asker, sampling)
        return phrases, [(row["document"], row["phrase"], row["question"]) for row in table.to_pylist()]

    @torch.no_grad()
    def _beams(self, model: Path, asker: AskerConfig) -> list[Told]:
        """The three questions that a search with as many beams finds for each evidence."""
        saved, found = load_saved(model), list[Told]()
        ids = [saved.prefix(asked(ASK, text, saved, asker.max_tokens)) for text in self.found.evidence]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for start in range(0, len(order), 16):
            rows = order[start : start + 16]
            width = max(len(ids[row]) for row in rows)
            filled = torch.tensor([[saved.end] * (width - len(ids[row])) + ids[row] for row in rows])
            seen = torch.tensor([[0] * (width - len(ids[row])) + [1] * len(ids[row]) for row in rows])
            how = {"num_beams": MOST, "num_return_sequences": MOST, "max_new_tokens": TOKENS, "do_sample": False}
            stops = {"eos_token_id": sorted({saved.start, saved.end}), "pad_token_id": saved.end}
            out = saved.model.generate(filled, attention_mask=seen, **how, **stops)[:, width:].tolist()
            texts = [saved.text(each) for each in out]
            found += [(rows[place // MOST], "", text) for place, text in enumerate(texts) if text]
        return sorted(found)

    def likelihoods(self, told: Sequence[Told]) -> list[float]:
        """Of each question behind its phrase, by the asker, in nats a token."""
        saved, most = load_saved(self.model("predicted")), AskerConfig().max_tokens
        prefixes = [asked(ASK, self.found.evidence[row], saved, most, phrase) for row, phrase, _ in told]
        rests = [question.removeprefix(phrase) for _, phrase, question in told]
        return [-float(loss) for loss in ModelLoss(saved).per_token(rests, prefixes)]

    def recall_rows(self, predictions: Mapping[str, list[list[str]]]) -> list[Row]:
        """Recall of sets of three phrases, a row for each kind."""
        known, dice, count = self.known, np.random.default_rng([self.seed, 2]), len(self.found.evidence)
        real = [[*{phrase for each in own if (phrase := known(each))}] for own in self.found.people]
        kinds = {f"recall: {name}": np.array(hits(own, real), float) for name, own in predictions.items()}
        kinds["recall: most frequent"] = np.array(hits([known.frequent(MOST)] * count, real), float)
        chance = [hits(by_frequency(known, count, MOST, dice), real) for _ in range(CHANCE)]
        kinds["recall: drawn by frequency"] = np.mean(chance, axis=0)
        asked_of = [len(own) for own in real]
        return [
            self.row(name, float(own.sum() / sum(asked_of)), own.tolist(), asked_of, own_evidence=True)
            for name, own in kinds.items()
        ]

    def row(
        self, arm: str, accuracy: float, right: Sequence[float], asked_of: Sequence[int], own_evidence: bool = False
    ) -> Row:
        """A row as claims read it; evidence is another for each seed, and XQuAD's articles are the same."""
        articles = [f"{self.seed} {place}" if own_evidence else str(place) for place in range(len(asked_of))]
        row = {"seed": self.seed, "arm": arm, "accuracy": round(accuracy, 5), "articles": articles}
        return row | {"right_by_article": [*right], "asked_by_article": [*asked_of]}


def figures(told: Sequence[tuple[int, str]], public: Sequence[str]) -> Row:
    """What is said of questions, each given with the number of its evidence."""
    types = [question_type(question) for _, question in told]
    return {
        "questions": len(told),
        "kl": round(divergence((question for _, question in told), public), 1),
        "first_words": round(mean(first_words(told).values()), 3),
        "share_what": round(types.count("what") / len(types), 3),
    }


def first_words(told: Sequence[tuple[int, str]]) -> dict[int, int]:
    """The number of distinct first words of the questions about each evidence that has questions."""
    first: dict[int, set[str]] = {}
    for number, question in told:
        first.setdefault(number, set()).add(question.split()[0])
    return {number: len(own) for number, own in first.items()}


@dataclass(frozen=True)
class Reading:
    """Readers that learn where evidence is from questions alone, tested on all of XQuAD."""

    sets: qve.Sets

    @cached_property
    def judge(self) -> Any:
        """A reader of 1,000 public questions."""
        return self.learnt(self.sets.source, SOURCES[-1], 0)

    def learnt(self, asked_: Any, most: int | None, order: int) -> Any:
        dice = np.random.default_rng([order, 3])
        return trained(beginning(), asked_[dice.permutation(len(asked_))[:most]], dice, qve.EPOCHS)

    def alike(self, asked_: Any) -> float:
        """The share of questions whose evidence is found in its passage."""
        return round(float((scores(self.judge[None], asked_)[0].argmax(axis=-1) == asked_.evidence).mean()), 4)

    def tested(self, asked_: Any, most: int | None = None, seed: int = 0) -> tuple[float, list[float], list[int]]:
        """The share of XQuAD's questions whose evidence is found, and the numbers of each article."""
        readers = np.stack([self.learnt(asked_, most, ORDERS * seed + order) for order in range(ORDERS)])
        own, theirs = self.sets.annotated_articles, self.sets.test_articles
        answered = np.concatenate([qve.right(readers, each) for each in (self.sets.annotated, self.sets.test)])
        articles = np.concatenate([own, theirs + own.max() + 1])
        return float(answered.mean()), np.bincount(articles, answered).round(2).tolist(), np.bincount(articles).tolist()

    def anew(self, asked_: Any, numbers: Sequence[int], count: int, seed: int) -> list[float]:
        """The shares where evidence is drawn anew, the same for every arm; `numbers` are those of each question."""
        dice, own = np.random.default_rng([seed, 4]), np.array(numbers)
        found = []
        for number in range(ANEW):
            rows = [np.flatnonzero(own == each) for each in dice.integers(count, size=count)]
            found.append(self.tested(asked_[np.concatenate(rows)], seed=ANEW * seed + number)[0])
        return found


def firsts(told: Sequence[Told], most: int) -> list[Told]:
    """At most so many questions of each evidence."""
    seen, kept = Counter[int](), []
    for each in told:
        seen[each[0]] += 1
        if seen[each[0]] <= most:
            kept.append(each)
    return kept


def of_seed(
    bench: Bench, reading: Reading, binary: list[list[str]]
) -> tuple[list[Row], list[Row], dict[str, list[Told]]]:
    """Figures of each arm, rows for claims, and the questions."""
    found, seed, count = bench.found, bench.seed, len(bench.found.evidence)
    public = [question for _, question in found.pairs]
    arms = {name: bench.arm(name) for name in bench.arms}
    told = {name: own for name, (_, own) in arms.items()}
    told["people"] = [(number, "", question) for number, own in enumerate(found.people) for question in own]
    drawn = told["qpp drawn"]
    parts = {f"qpp drawn, {most} of an evidence": firsts(drawn, most) for most in (1, 2)}
    parts["qpp drawn, half the evidence"] = [each for each in drawn if each[0] < count // 2]
    shown, rows = [], list[Row]()
    for name, own in (told | parts).items():
        asked_about = [{"sentence": found.evidence[n], "question": question} for n, _, question in own]
        learnt = reading.sets.about_target(asked_about)
        again = {"anew": reading.anew(learnt, [number for number, *_ in own], count, seed)} if name in told else {}
        rows.append(bench.row(name, *reading.tested(learnt, seed=seed)) | again)
        bare = [(number, question) for number, _, question in own]
        read = {"accuracy": rows[-1]["accuracy"], "alike": reading.alike(learnt)}
        shown.append({"arm": name, "seed": seed} | figures(bare, public) | read)
        words = first_words(bare)
        several, there = [words.get(n, 0) for n in range(count)], [int(n in words) for n in range(count)]
        rows.append(bench.row(f"first words: {name}", mean(words.values()), several, there, own_evidence=True))
    for most in SOURCES:
        rows.append(bench.row(f"source@{most}", *reading.tested(reading.sets.source, most, seed)))
        shown.append({"arm": f"source@{most}", "seed": seed, "accuracy": rows[-1]["accuracy"]})
    predictions = {name: phrases for name, (phrases, _) in arms.items() if phrases} | {"binary relevance": binary}
    return shown, rows + bench.recall_rows(predictions), told


def divergences(told: Sequence[Mapping[str, list[Told]]], public: Sequence[str]) -> dict[str, list[list[float]]]:
    """Of each arm the KL of each seed, as it is and of evidence drawn anew, in the same way for every arm."""
    dice, found = np.random.default_rng(0), {name: list[list[float]]() for name in told[0]}
    theirs = Counter(map(question_type, public))
    for own in told:
        evidence = 1 + max(number for each in own.values() for number, *_ in each)
        draws = [np.ones(evidence, int), *dice.multinomial(evidence, np.full(evidence, 1 / evidence), REPLICATES)]
        for name, each in own.items():
            found[name].append([divergence_of_types(_types(each, draw), theirs) for draw in draws])
    return found


def _types(told: Sequence[Told], draw: Any) -> Counter[str]:
    """The types of questions, each as often as its evidence was drawn."""
    found = Counter[str]()
    for number, _, question in told:
        found[question_type(question)] += int(draw[number])
    return +found


def table(data: Path, seeds: Sequence[int], words: Sequence[str]) -> dict[str, Any]:
    """All arms of all seeds, and what they show."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--evidences", type=int, default=150)
    parser.add_argument("--steps", type=int, default=84)
    parser.add_argument("--many", type=int, default=MANY, help="sets that are drawn to know the likeliest phrases")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS], help="with `qpp drawn` among them")
    parser.add_argument("--asked", type=Path)
    given = parser.parse_args(words)
    given.work.mkdir(parents=True, exist_ok=True)
    backbone, reading = load_backbone(ModelConfig()), Reading(qve.sets(data))
    benches = [
        Bench(
            sets(data, given.evidences, seed),
            backbone,
            given.work.absolute(),
            given.steps,
            seed,
            given.many,
            given.arms,
        )
        for seed in seeds
    ]
    pairs, evidence = sorted(benches[0].found.pairs), [text for bench in benches for text in bench.found.evidence]
    binary = relevance(pairs, benches[0].known, evidence, reading.sets.vectors, MOST)
    count = len(evidence) // len(benches)
    found = [of_seed(bench, reading, binary[at * count : (at + 1) * count]) for at, bench in enumerate(benches)]
    shown, rows, told = ([*each] for each in zip(*found, strict=True))
    public = [question for _, question in pairs]
    if given.asked:
        write_asked(given.asked, benches, told)
    every = [row for own in rows for row in own]
    return {
        "system": "cliniqg",
        "settings": vars(given) | {"work": None, "asked": None, "seeds": [*seeds], "pairs": len(public)},
        "means": means([row for own in shown for row in own]),
        "recall": means([_bare(row) for row in every if row["arm"].startswith("recall: ")]),
        "claims": asking(every, divergences(told, public)),
        "paper_kl_greedy_beam_qpp": PAPER_KL,
        "rows": [row for own in shown for row in own],
        "questions": [
            {"arm": name, "evidence": benches[0].found.evidence[number], "phrase": phrase, "question": question}
            for name, own in told[0].items()
            for number, phrase, question in own[:SHOWN]
        ],
    }


def _bare(row: Row) -> Row:
    return {name: row[name] for name in ("arm", "seed", "accuracy")}


def write_asked(path: Path, benches: Sequence[Bench], told: Sequence[Mapping[str, list[Told]]]) -> None:
    rows = [
        {"question": question, "sentence": bench.found.evidence[number], "likelihood": likelihood}
        for bench, own in zip(benches, told, strict=True)
        for (number, _, question), likelihood in zip(own["qpp drawn"], bench.likelihoods(own["qpp drawn"]), strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def means(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Each figure of each arm, over seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name, figure in row.items():
            if name not in ("arm", "seed"):
                found.setdefault(row["arm"], {}).setdefault(name, []).append(figure)
    return {arm: {name: round(mean(each), 4) for name, each in own.items()} for arm, own in found.items()}


def shown(found: Mapping[str, Any]) -> list[str]:
    """The table in lines of text."""
    lines = [f"{arm:<32} {figures}" for arm, figures in (found["means"] | found["recall"]).items()]
    return [*lines, *map(said, found["claims"])]
