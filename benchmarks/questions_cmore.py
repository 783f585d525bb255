"""Retrieval with and without pretraining on clozes (C-MORE; Yue et al., ACL 2022, table 4.1 of the thesis).

    python benchmarks/questions_table.py --system cmore --data DIR --seeds 0 1 2 --json --work WORK [--questions FILE]

XQuAD's 1,190 questions look for their contexts among these and windows of five sentences of SQuAD: of other articles
(`H + S`) or, harder, of the same ones (`H + T`). `source@n` learns from n public questions of the other articles, whole
stretches of an article at a time; clozes and inverse clozes (a sentence, to be found by the rest of its passage) are
of WikiText. A seed draws the questions, what is held out and the order of training.

Both starts of `static` are there: `plain`, a language model's token vectors, which all weigh the same, so that a row
shows what was learnt; and `packaged`, what the product begins with: the token vectors of a sentence encoder, by idf. It
was trained on questions and answers, and is nothing that C-MORE began with. `minilm-l6` is that encoder itself.

`released` and `people` are retrievers of the packaged start that learnt from as many questions about windows of the
test's articles, people's or, as `--questions FILE` has them: `questions.parquet` of a run, or a table of `question` and
`sentence` of those windows. Without it clozes about the same windows stand for them, by rules.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from questions_claims import cmore
from squad import passages, sentence_windows, source_and_target

from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.sources import MINILM
from rayprivacy.questions.answers import RANKED
from rayprivacy.questions.clozes import Document
from rayprivacy.questions.encoders import Array, StaticEncoder, TextEncoder
from rayprivacy.questions.entities import Finder, finder
from rayprivacy.questions.lexical import Bm25
from rayprivacy.questions.passages import blocks, sentences
from rayprivacy.questions.retriever import Pair, Retriever, best, mixed, pairs_of, trained_retriever
from rayprivacy.questions.settings import EvidenceConfig, PassagesConfig, RetrieverConfig

STRETCH = 8  # windows that stand for an article, whose sentences lie in their order
SOURCES = (250, 1000, 6000)
PLAIN, PACKAGED = "plain", "packaged"
RATES = {PLAIN: 0.05, PACKAGED: None}
WHOLE = PassagesConfig(words=512, stride=512)
# Table 4.1 of the thesis, top-20 on NQ, TriviaQA and WebQ; and of DPR on WebQ, without and with C-MORE, elsewhere.
CMORE_PAPER = {
    "BM25": (59.1, 66.9, 55.0),
    "inverse cloze (ORQA)": (50.6, 57.5, None),
    "C-MORE": (61.9, 72.2, 62.7),
    "source": (78.4, 79.4, 73.2),
    "C-MORE + source": (80.3, 81.3, 75.0),
    "source WebQ": (56.1, 66.1, None),
    "C-MORE + source WebQ": (67.3, 74.2, None),
}


@dataclass(frozen=True)
class Sets:
    """What is learnt from, and what is looked for among what."""

    data: Path
    work: Path
    asked: Path | None
    base: str

    @cached_property
    def starts(self) -> dict[str, StaticEncoder]:
        known = [*dict.fromkeys(text for texts in self.pools.values() for text in texts)]
        found = {
            PLAIN: StaticEncoder.of(self.base, known, width=128, idf=False),
            PACKAGED: StaticEncoder.of(MINILM, known),
        }
        for encoder in found.values():
            encoder.tokenizer = Remembering(encoder.tokenizer)
        return found

    @cached_property
    def pretraining(self) -> dict[str, list[Pair]]:
        clozes = [Pair(*row) for row in _kept(self.work / "clozes.json", self.clozes)]
        return {"inverse cloze": self.inverse(len(clozes)), "C-MORE": clozes}

    @cached_property
    def test(self) -> list[dict[str, Any]]:
        return pq.read_table(self.data / "squad_xquad_en.parquet").to_pylist()

    @cached_property
    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return source_and_target(self.data)

    @cached_property
    def pools(self) -> dict[str, list[str]]:
        contexts = [*dict.fromkeys(row["context"] for row in self.test)]
        return {name: contexts + passages(rows) for name, rows in zip(("H + S", "H + T"), self.rows, strict=True)}

    @cached_property
    def articles(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for row in pq.read_table(self.data / "wikitext2_raw_valid_test.parquet").to_pylist():
            found.setdefault(row["article"], []).append(row["text"])
        return found

    @cached_property
    def words(self) -> dict[str, Array]:
        """What words say of each passage of a pool, for each question of the test."""
        asked = [row["question"] for row in self.test]
        return {name: Bm25(texts).shares(asked) for name, texts in self.pools.items()}

    def clozes(self) -> list[Pair]:
        """Clozes about WikiText, each of the rest of its article."""
        find = finder("spacy")
        return [
            Pair(cloze.question, document.passages[cloze.passage].text, _evidence(document, cloze), title)
            for number, (title, texts) in enumerate(self.articles.items())
            for document in [Document(number, title, texts, range(len(texts)), PassagesConfig())]
            for cloze in _clozes(document, find, elsewhere=True)
        ]

    def inverse(self, most: int) -> list[Pair]:
        """Sentences of WikiText, each with the rest of its passage."""
        dice, found = random.Random(0), []
        for title, texts in self.articles.items():
            for text in texts:
                for start, end in blocks(text, 128, 64):
                    whole, inside = text[start:end], sentences(text[start:end])
                    begins, ends = dice.choice(inside)
                    rest = whole[:begins] + whole[ends:]
                    if 5 <= len(whole[begins:ends].split()) <= 60 and rest.strip():
                        found.append(Pair(whole[begins:ends], rest, rest, title))
        return dice.sample(found, min(most, len(found)))

    def people(self, rows: Sequence[dict[str, Any]]) -> list[Pair]:
        """Questions about sentences, with their windows."""
        every = self.rows[0] if rows and rows[0] in self.rows[0] else self.rows[1]
        place = {sentence: number for number, window in enumerate(sentence_windows(every)) for sentence in window}
        texts = passages(every)
        return [
            Pair(row["question"], texts[at], row["sentence"], str(at // STRETCH))
            for row in rows
            for at in [place[row["sentence"]]]
        ]

    def released(self) -> list[Pair]:
        """Questions that were not asked by people about windows of the test's articles, or of a run."""
        if self.asked is None:
            found, find = [], finder("rules")
            for at, window in enumerate(sentence_windows(self.rows[1])):
                document = Document(at, "", window, range(len(window)), WHOLE)
                for cloze in _clozes(document, find, elsewhere=False):
                    found.append(Pair(cloze.question, " ".join(window), _evidence(document, cloze), str(at // STRETCH)))
            return found
        table = pq.read_table(self.asked)
        if "context" not in table.column_names:
            return self.people(table.to_pylist())
        return pairs_of(table.filter(table["kept"]))


def _clozes(document: Document, find: Finder, *, elsewhere: bool) -> Iterator[Any]:
    return document.clozes(find(document.texts), EvidenceConfig(), elsewhere, random.Random(document.number))


def _evidence(document: Document, cloze: Any) -> str:
    return document.passages[cloze.passage].text[slice(*cloze.evidence)]


def some(pairs: Sequence[Pair], most: int, seed: int) -> list[Pair]:
    """Pairs of whole groups, drawn until there are enough."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.group, []).append(pair)
    names = sorted(groups)
    random.Random(seed).shuffle(names)
    return [pair for name in names for pair in groups[name]][:most]


class Remembering:
    """A tokenizer that reads a text once, since many retrievers learn from the same texts."""

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.known = tokenizer, {}

    def encode_batch(self, texts: Sequence[str], **how: Any) -> list[Any]:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        for text, found in zip(new, self.tokenizer.encode_batch(new, **how), strict=True):
            self.known[text] = SimpleNamespace(ids=found.ids)
        return [self.known[text] for text in texts]


class Trial:
    """One seed of one start."""

    def __init__(self, sets: Sets, start: str, seed: int):
        self.sets, self.start, self.seed = sets, start, seed
        self.said: dict[str, Any] = {}

    def rows(self) -> Iterator[dict[str, Any]]:
        raw = Retriever(self.sets.starts[self.start])
        yield from self.row("raw", raw)
        known = {"": raw} | {name: self.learnt(raw, name, pairs) for name, pairs in self.sets.pretraining.items()}
        for name in self.sets.pretraining:
            yield from self.row(name, known[name])
        yield from self.row("hybrid", known["C-MORE"], hybrid=True)
        source = self.sets.people(self.sets.rows[0])
        for most in SOURCES:
            pairs = some(source, most, self.seed)
            for name in ("", "C-MORE"):
                arm = " + ".join(filter(None, [name, f"source@{most}"]))
                yield from self.row(arm, self.learnt(known[name], arm, pairs))
        if self.start == PACKAGED:
            yield from self.acceptance(raw)

    def acceptance(self, raw: Retriever) -> Iterator[dict[str, Any]]:
        both = {"released": self.sets.released(), "people": self.sets.people(self.sets.rows[1])}
        most = min(map(len, both.values()))
        for name, pairs in both.items():
            found = self.learnt(raw, name, some(pairs, most, self.seed))
            yield from self.row(name, found)
            yield from self.row(f"{name}, hybrid", found, hybrid=True)

    def learnt(self, start: Retriever, name: str, pairs: Sequence[Pair]) -> Retriever:
        config = RetrieverConfig(learning_rate=RATES[self.start])
        found, losses = trained_retriever(start.encoder, [pairs], config, self.seed)
        self.said[name] = {"pairs": len(pairs), "share": found.share, "held_out_losses": losses[0]}
        return found

    def row(self, arm: str, retriever: Retriever, *, hybrid: bool = False) -> Iterator[dict[str, Any]]:
        asked = retriever.vectors([row["question"] for row in self.sets.test])
        for pool, texts in self.sets.pools.items():
            scores = asked @ retriever.vectors(texts).T
            if hybrid:
                scores = mixed(self.sets.words[pool], scores, retriever.share)
            yield measured(self.sets, scores, texts) | {
                "start": self.start,
                "pool": pool,
                "arm": arm,
                "seed": self.seed,
            }


def measured(sets: Sets, scores: Array, texts: Sequence[str]) -> dict[str, Any]:
    """The figures of one ranking of a pool; `accuracy` is top-20."""
    place = {text: number for number, text in enumerate(texts)}
    ranked = best(scores, 20)
    right = [{place[row["context"]]} for row in sets.test]
    figures = {name: [*map(measure, ranked, right)] for name, measure in RANKED.items()}
    articles = np.unique([row["title"] for row in sets.test], return_inverse=True)[1]
    return {name: round(float(np.mean(each)), 4) for name, each in figures.items()} | {
        "accuracy": round(float(np.mean(figures["top_20"])), 5),
        "right_by_article": np.bincount(articles, figures["top_20"]).tolist(),
        "asked_by_article": np.bincount(articles).tolist(),
    }


def table(data: Path, seeds: Sequence[int], words: Sequence[str]) -> dict[str, Any]:
    """All rows, and what they show."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--starts", nargs="+", default=[PLAIN, PACKAGED])
    parser.add_argument("--base", default=ModelConfig().base, help="whose token vectors `plain` begins with")
    parser.add_argument("--reference", action="store_true", help="with the row of minilm-l6, which takes minutes")
    arguments = parser.parse_args(words)
    arguments.work.mkdir(parents=True, exist_ok=True)
    sets = Sets(data, arguments.work, arguments.questions, arguments.base)
    rows = [
        measured(sets, sets.words[pool], texts) | {"start": "", "pool": pool, "arm": "BM25", "seed": 0}
        for pool, texts in sets.pools.items()
    ]
    said: dict[str, Any] = {}
    for start in arguments.starts:
        for seed in seeds:
            trial = Trial(sets, start, seed)
            own, learnt = _kept(arguments.work / f"{start}-{seed}.json", lambda t=trial: ([*t.rows()], t.said))
            rows += own
            said[f"{start} {seed}"] = learnt
    if arguments.reference:
        rows += _kept(arguments.work / "reference.json", lambda: [*_reference(sets)])
    return {
        "system": "cmore",
        "stand_in": arguments.questions is None,
        "means": means(rows),
        "claims": cmore(rows),
        "learning": said,
        "paper_top_20": CMORE_PAPER,
        "rows": [{name: each for name, each in row.items() if "article" not in name} for row in rows],
    }


def _reference(sets: Sets) -> Iterator[dict[str, Any]]:
    encoder = TextEncoder.load(MINILM, 192)
    every = [*dict.fromkeys(text for pool in sets.pools.values() for text in pool)]
    place, vectors = {text: number for number, text in enumerate(every)}, encoder.vectors(every)
    asked = encoder.vectors([row["question"] for row in sets.test])
    for pool, texts in sets.pools.items():
        scores = asked @ vectors[[place[text] for text in texts]].T
        yield measured(sets, scores, texts) | {"start": "", "pool": pool, "arm": MINILM, "seed": 0}


def _kept(path: Path, make: Any) -> Any:
    if not path.exists():
        path.write_text(json.dumps(make(), allow_nan=False))
    return json.loads(path.read_text())


def means(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """The mean figures of each arm on each pool, by start."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        found.setdefault(f"{row['pool']} {row['start']}".strip(), {}).setdefault(row["arm"], []).append(row)
    return {
        name: {
            arm: {figure: round(float(np.mean([row[figure] for row in own])), 4) for figure in RANKED}
            for arm, own in arms.items()
        }
        for name, arms in found.items()
    }


def shown(found: dict[str, Any]) -> list[str]:
    """The table in lines of text."""
    lines = [
        f"{name:<16} {arm:<22} " + "  ".join(f"{figure} {value:.3f}" for figure, value in figures.items())
        for name, arms in found["means"].items()
        for arm, figures in arms.items()
    ]
    for claim in found["claims"]:
        figures = {name: figure for name, figure in claim.items() if name not in ("claim", "must", "held")}
        state = ("held" if claim["held"] else "FAILED") if claim["must"] else ("so" if claim["held"] else "not so")
        lines.append(f"{state:<6}  {claim['claim']}  {figures}")
    return lines
