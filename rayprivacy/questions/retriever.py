"""A retriever (C-MORE; Yue et al., ACL 2022): it learns from clozes, then from questions, and finds their passages.

    clozes, questions -> a tenth of their groups held out; the others -> batches, a group's pairs together
                      -> each question told from the other passages of its batch -> the best state on what is held out

A question must be told from passages that resemble its own: from those of other documents the topic alone tells it.
The state before training is one of those that are compared, so that what is held out is found no less often.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import SHARED, Json, made_folder, read_json, write_json
from rayprivacy.models.pretraining import LARGEST_NORM, descend
from rayprivacy.questions.answers import reciprocal_rank, score_rankings
from rayprivacy.questions.clozes import Passage
from rayprivacy.questions.encoders import Array, Encoder, fresh_encoder, load_encoder
from rayprivacy.questions.lexical import Bm25
from rayprivacy.questions.passages import windows
from rayprivacy.questions.settings import RetrieverConfig
from rayprivacy.questions.table import TEST_SHARE

SHARPNESS = 20.0  # scores are cosines times this
TOGETHER = 16  # pairs of a group that lie together in a batch
LOOKS = 8  # at what is held out, in an epoch
PATIENCE = 3  # looks without a lower loss, behind which training ends
HELD_OUT = 0.1
LEAST = 10  # groups of which a tenth is held out, or passages
_POOL = 1000  # passages among which held-out ones are looked for
_AT_ONCE = 64  # questions whose scores are in memory
_SHARES = tuple(step / 10 for step in range(11))
_FILE = "retriever.json"


class Pair(NamedTuple):
    """A question and a passage that answers it."""

    question: str
    passage: str
    evidence: str  # what answers it: another passage that holds it is right too
    group: str  # of passages that resemble each other: a document, say


def pairs_of(table: pa.Table) -> list[Pair]:
    """The pairs of a table of questions; passages of one title are a group, and of none each its own."""
    rows = table.select(["question", "context", "evidence", "title", "passage"]).to_pylist()
    return [
        Pair(row["question"], row["context"], row["evidence"], row["title"] or f"passage {row['passage']}")
        for row in rows
    ]


def apart(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from, and those of a tenth of the groups, or of the passages where groups are too few."""
    units = [pair.group for pair in pairs]
    if len(set(units)) < LEAST:
        units = [pair.passage for pair in pairs]
    known = sorted(set(units))
    order = np.random.default_rng([seed, len(known)]).permutation(len(known))
    held = {known[place] for place in order[: round(HELD_OUT * len(known))]}
    both = [*zip(units, pairs, strict=True)]
    return [pair for unit, pair in both if unit not in held], [pair for unit, pair in both if unit in held]


def batches(pairs: Sequence[Pair], size: int, dice: np.random.Generator) -> Iterator[Sequence[Pair]]:
    """All pairs, in batches of an order that the dice draw: up to `TOGETHER` of a group lie together."""
    groups: dict[str, list[Pair]] = {}
    for place in dice.permutation(len(pairs)):
        groups.setdefault(pairs[place].group, []).append(pairs[place])
    pieces = [piece for own in groups.values() for piece in windows(own, TOGETHER)]
    yield from windows([pair for place in dice.permutation(len(pieces)) for pair in pieces[place]], size)


def told_apart(encoder: Encoder, batch: Sequence[Pair]) -> torch.Tensor:
    """The mean loss, in nats, of telling which of a batch's passages answers each of its questions."""
    passages = [*dict.fromkeys(pair.passage for pair in batch)]
    right = torch.tensor([passages.index(pair.passage) for pair in batch])
    holding = torch.tensor([[pair.evidence in passage for passage in passages] for pair in batch])
    holding[range(len(batch)), right] = False
    scores = SHARPNESS * encoder([pair.question for pair in batch]) @ encoder(passages).T
    return torch.nn.functional.cross_entropy(scores.masked_fill(holding, -torch.inf), right)


@dataclass(frozen=True)
class Retriever:
    """Finds the passages that answer a question.

        from rayprivacy import Retriever
        retriever = Retriever.load("runs/mine/questions/model/retriever")
        retriever.search("Who built the mill?", passages)          # [(17, 0.83), (4, 0.61), ...]

    Attributes:
        encoder: of questions and passages.
        share: of a score that is the cosine of their vectors; the rest is BM25, as a share of the best passage's.
    """

    encoder: Encoder
    share: float = 1.0

    def vectors(self, texts: Sequence[str]) -> Array:
        """The vectors of questions or passages, of length 1, [texts, width]."""
        return self.encoder.vectors(texts)

    def search(self, question: str, passages: Sequence[str], top: int = 20) -> list[tuple[int, float]]:
        """The places of the best passages with their scores; `over` serves many questions about the same ones."""
        return self.over(passages).search(question, top)

    def over(self, passages: Sequence[str]) -> "Index":
        """The passages, encoded once."""
        return Index(self, passages)

    def save(self, folder: Path) -> None:
        """Write the folder that `load` reads, and SentenceTransformer too."""
        self.encoder.save(made_folder(folder, "the retriever's folder"))
        write_json(folder / _FILE, {"share": self.share}, SHARED)

    @staticmethod
    def load(folder: str | Path) -> "Retriever":
        """Load the folder `model/retriever` of a run.

        Raises:
            ConfigError: it holds no retriever.
        """
        try:
            share = float(read_json(Path(folder) / _FILE)["share"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{folder} holds no retriever that can be read ({type(error).__name__}): name one."
            ) from None
        return Retriever(load_encoder(Path(folder)), share)


@dataclass(frozen=True)
class Index:
    """Passages that a retriever looks through."""

    retriever: Retriever
    passages: Sequence[str]

    @cached_property
    def _vectors(self) -> Array:
        return self.retriever.vectors(self.passages)

    @cached_property
    def _words(self) -> Bm25:
        return Bm25(self.passages)

    def search(self, question: str, top: int = 20) -> list[tuple[int, float]]:
        """The places of the best passages, with their scores."""
        (scores,) = mixed(*self.scores([question]), self.retriever.share)
        return [(place, float(scores[place])) for place in best(scores[None], top)[0]]

    def scores(self, questions: Sequence[str]) -> tuple[Array, Array]:
        """What words say of each passage, as a share of the best, and what vectors say, [questions, passages] each."""
        return self._words.shares(questions), self.retriever.vectors(questions) @ self._vectors.T


def mixed(words: Array, vectors: Array, share: float) -> Array:
    """Scores of which a share is of vectors."""
    return np.asarray((1 - share) * words + share * vectors)


def best(scores: Array, top: int) -> list[list[int]]:
    """The places of the highest scores of each row; of equal ones the first."""
    found: list[list[int]] = np.argsort(-scores, axis=1, kind="stable")[:, :top].tolist()
    return found


def fitted(
    encoder: Encoder,
    pairs: Sequence[Pair],
    held: Sequence[Pair],
    config: RetrieverConfig,
    seed: int,
) -> tuple[Encoder, list[float]]:
    """An encoder that has learnt from pairs, at the least loss on held-out ones; and their loss at each look."""
    model, dice = encoder.learning(), np.random.default_rng(seed)
    drawn = [batch for _ in range(config.epochs) for batch in batches(pairs, config.batch, dice)]
    tests = [*batches(held, config.batch, np.random.default_rng(seed))]
    every = max(1, len(drawn) // (LOOKS * config.epochs))
    losses: list[float] = []
    kept: dict[str, Any] = {}

    def goes_on() -> bool:
        with torch.no_grad():
            losses.append(sum(float(told_apart(model, test)) * len(test) for test in tests) / len(held))
        if losses[-1] < min(losses[:-1], default=math.inf):
            kept.update(copy.deepcopy(model.state_dict()))
        return len(losses) - losses.index(min(losses)) <= PATIENCE

    def steps() -> Iterator[list[torch.Tensor]]:
        for step, batch in enumerate(drawn):
            if step % every == 0 and not goes_on():
                return
            yield [told_apart(model, batch)]
        goes_on()

    optimizer = torch.optim.Adam(model.learnt(), lr=config.learning_rate or model.rate)
    descend(optimizer, steps(), falling_over=len(drawn), largest_norm=LARGEST_NORM)
    if not math.isfinite(losses[-1]):
        rate = config.learning_rate or model.rate
        raise ConfigError(f"questions.retriever.learning_rate is {rate:g}, and training diverges: lower it.")
    model.load_state_dict(kept)
    return model.settled(), [round(loss, 4) for loss in losses]


def trained_retriever(
    encoder: Encoder, lessons: Sequence[Sequence[Pair]], config: RetrieverConfig, seed: int
) -> tuple[Retriever, list[list[float]]]:
    """A retriever that has learnt one lesson after another, with the losses of each.

    What is held out of the last lesson says how much of its scores is of vectors: clozes would say too little, since
    they share more words with their passages than questions do.
    """
    split = [apart(pairs, seed) for pairs in lessons]
    found = []
    for learnt, held in split:
        encoder, losses = fitted(encoder, learnt, held, config, seed)
        found.append(losses)
    return Retriever(encoder, best_share(encoder, *split[-1])), found


def best_share(encoder: Encoder, others: Sequence[Pair], held: Sequence[Pair]) -> float:
    """The share of vectors by which held-out questions find their passages best (MRR@10), among those of others too."""
    passages = [*dict.fromkeys(pair.passage for pair in (*held, *others))][:_POOL]
    known = {passage: place for place, passage in enumerate(passages)}
    asked = [pair for pair in held if pair.passage in known]
    scores = Retriever(encoder).over(passages).scores([pair.question for pair in asked])
    right = [{known[pair.passage]} for pair in asked]
    figures = [sum(map(reciprocal_rank, best(mixed(*scores, share), 10), right)) for share in _SHARES]
    return _SHARES[int(np.argmax(figures))]


def require_passages(passages: int, documents: int) -> None:
    """Refuse a set of so few passages that a retriever could learn from none, whatever is asked about them."""
    if passages - round(TEST_SHARE * documents) < LEAST:
        raise ConfigError(
            f"questions.retriever learns from at least {LEAST} passages besides those of the test, and the texts make"
            f" {passages}: give more text, or set questions.retriever to null."
        )


def train_retriever(
    questions: pa.Table,
    passages: Sequence[Passage],
    clozes: pa.Table | None,
    config: RetrieverConfig,
    seed: int,
    folder: Path,
) -> Json:
    """Train and save a retriever of a set's kept questions; returns counts, and figures on those of the split `test`.

    Where they are about too few passages there is none, and what is returned says why.

    Args:
        questions: as `table.finished` has them.
        passages: all of the set, in which the figures look for those of the test.
        clozes: of which none is about a passage of the test; None where the questions are clozes.
        config: the block `retriever`.
        seed: public; of what is held out, and of the order of pairs.
        folder: of the retriever, `model/retriever` of a run.
    """
    kept = questions.filter(questions["kept"])
    learnt, tested = (pairs_of(kept.filter(pc.equal(kept["split"], name))) for name in ("train", "test"))
    known = {pair.passage for pair in tested}
    clozed = pairs_of(clozes) if config.clozes and clozes is not None else []
    clozed = [pair for pair in clozed if pair.passage not in known]
    lessons = [pairs for pairs in (clozed, learnt) if len({pair.passage for pair in pairs}) >= LEAST]
    if not lessons:
        found = len({pair.passage for pair in learnt})
        return {"left_out": f"the questions to learn from are about {found} passages, and it takes {LEAST}"}
    texts = [*dict.fromkeys(passage.text for passage in passages)]
    retriever, losses = trained_retriever(fresh_encoder(config, texts), lessons, config, seed)
    retriever.save(folder)
    said = {"share_of_vectors": retriever.share, "held_out_losses": losses, "learnt": [*map(len, lessons)]}
    return said | ({"test": tried(retriever, tested, texts)} if tested else {})


def tried(retriever: Retriever, tested: Sequence[Pair], passages: Sequence[str]) -> Json:
    """Figures of BM25, of vectors and of both, with intervals over groups, on questions among all passages."""
    place = {passage: number for number, passage in enumerate(passages)}
    right, groups = [{place[pair.passage]} for pair in tested], [pair.group for pair in tested]
    shares = {"bm25": 0.0, "vectors": 1.0, "hybrid": retriever.share}
    ranked: dict[str, list[list[int]]] = {name: [] for name in shares}
    index = retriever.over(passages)
    for some in windows(tested, _AT_ONCE):
        scores = index.scores([pair.question for pair in some])
        for name, share in shares.items():
            ranked[name] += best(mixed(*scores, share), 20)
    return {
        name: {figure: asdict(found) for figure, found in score_rankings(own, right, groups).items()}
        for name, own in ranked.items()
    }
