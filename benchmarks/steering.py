"""What the released words of a profile do to matched text: finished runs, whose candidates are chosen among again.

    python benchmarks/steering.py --runs runs/chat --profile runs/profile/profile.json --public PARQUET \\
        [--openers [--usual]] --json

Each run has a `match` block without words, and its private folder, with the sums of its users' votes. Their votes for
words are counted beside, and the noise of either mechanism is drawn from a seed, for figures that nobody may publish.
So both rows have the same model, the same candidates, and the same charge: what differs is the choice. With `--openers`
the released model also writes as many texts as released words lack, behind openers as a run does (blocks/openers.py),
and with `--usual` as many in its usual way, for more rows: the choice among its candidates and these.

Words are distinctive that are frequent in the corpus and not in the public text (a file with a column `text`): the
hundred of the largest share times logarithm of the ratio of shares, each of three users or more. `held` is the share of
texts with one of them, and `content` the total variation of the shares of the hundred commonest content words.
"""

import argparse
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from openers import more_texts
from safetensors.numpy import load_file

from rayprivacy.blocks.match import _kept, cut
from rayprivacy.blocks.match_plan import MATCH, MOST_WORDS, profile_of
from rayprivacy.blocks.openers import missing
from rayprivacy.corpus.content import content_words
from rayprivacy.corpus.manifest import part_tables
from rayprivacy.evaluation.embeddings import embed, open_embedding
from rayprivacy.evaluation.evaluate import _fidelity_rows
from rayprivacy.evaluation.fidelity import total_variation
from rayprivacy.evaluation.memorisation import Features
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.shape import Shape, rarest
from rayprivacy.evaluation.texts import draw, plain
from rayprivacy.generation.codes import Codes
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.release.histogram import Margins, summed

MOST, LEAST_USERS = 100, 3
FIGURES = ("mauve", "precision", "recall", "frechet")


class Measured:
    """The words of a corpus, and what text has of them."""

    def __init__(self, texts: list[str], users: list[str], public: list[str]) -> None:
        self._real, counts = texts, _counts(texts)
        writers = Counter(word for word, _ in {(w, u) for t, u in zip(texts, users, strict=True) for w in _words(t)})
        self.commonest = [word for word, _ in counts.most_common(MOST)]
        there, known, more = counts.total(), _counts(public), len(counts)
        score = {
            word: count * math.log((count / there) / ((known[word] + 1) / (known.total() + more)))
            for word, count in counts.items()
            if writers[word] >= LEAST_USERS
        }
        self.distinctive = sorted(score, key=lambda word: (-score[word], word))[:MOST]

    def figures(self, texts: list[str], released: list[str]) -> dict[str, float]:
        """Shares of texts with a distinctive word and with a released one, and the total variation of content words."""
        found, real = (_held(each, self.commonest) for each in (texts, self._real))
        return {
            "held": _share(texts, self.distinctive),
            "released": _share(texts, released),
            "content": total_variation(found, real),
        }


def _words(text: str) -> set[str]:
    return {*content_words(text)}


def _counts(texts: list[str]) -> Counter[str]:
    return Counter(word for text in texts for word in _words(text))


def _held(texts: list[str], words: list[str]) -> list[int]:
    counts = _counts(texts)
    return [counts[word] for word in words]


def _share(texts: list[str], words: list[str]) -> float:
    return sum(not _words(text).isdisjoint(words) for text in texts) / len(texts)


def rows(run: Path, profile: Path, public: list[str], draws: int, openers: bool, usual: bool) -> dict[str, Any]:
    """The figures of a run's candidates chosen with and without the words, over some draws of the noise."""
    recipe: Any = load_recipe(run / "recipe.yaml", [])
    plan, sentences = method_of(recipe).planned(recipe), SentenceModel.packaged()
    released = [each.word for each in profile_of(str(profile)).words[:MOST_WORDS]]
    private = [row for part in range(plan.parts) for rows in part_tables(run / "private/shards", part) for row in
               rows.select(["user", "text"]).to_pylist()]  # fmt: skip
    texts = [str(row["text"]) for row in private]
    measured = Measured(texts, [str(row["user"]) for row in private], public)
    candidates = pq.read_table(run / "public/candidates.parquet")
    (centres,) = (load_file(path)["centres"] for path in (run / "public").glob("shape-*.safetensors"))
    few = np.random.default_rng(0).permutation(len(texts))[: recipe.generation.texts]
    found: dict[str, Any] = {
        "method": recipe.method, "epsilon": recipe.privacy.epsilon, "released_words": len(released),
        "candidates": len(candidates), "texts": recipe.generation.texts, "draws": draws,
        "real": measured.figures(texts, released),
        "as many real": measured.figures([texts[at] for at in few], released),
    }  # fmt: skip
    votes = _votes(run, recipe, private, released)
    arms: dict[str, tuple[tuple[str, ...], pa.Table]] = {
        "today": ((), candidates),
        "with words": ((words := tuple(released)), candidates),
    }
    if openers:
        shape = Shape(centres, words)
        margins = Margins(shape.blocks, plan.stage(MATCH).mechanism.sigma, recipe.privacy.unit)
        wanted = _wanted(margins, votes, 0)
        lacking = missing(wanted[2], rarest(cut(candidates["text"].to_pylist(), wanted[1], 0), released))[1:]
        found["openers"] = int(lacking.sum())
        for name, usually in (("with words, more candidates", True), ("with words, openers", False)):
            if usual or not usually:
                more = more_texts(run, recipe, candidates, released, lacking, usually)
                arms[name] = (words, pa.concat_tables([candidates, more]))
    for name, (words, candidates) in arms.items():
        shape = Shape(centres, words)
        margins = Margins(shape.blocks, plan.stage(MATCH).mechanism.sigma, recipe.privacy.unit)
        kept = [
            _chosen(candidates, recipe, shape, margins, votes[: margins.cells], sentences, seed)
            for seed in range(draws)
        ]
        found[name] = _means([measured.figures(own, released) | _quality(texts, own, "synthetic") for own in kept])
        found["other users"] = _quality(texts, kept[0], "reference")
    found["held_of_real"] = {name: found[name]["held"] / found["real"]["held"] for name in arms}
    return found


def _quality(real: list[str], kept: list[str], side: str) -> dict[str, float]:
    """How near the embeddings of kept texts, or of as many of other users, are to those of real ones."""
    config = EvaluationConfig(embeddings=("minilm-l6",), base=None, max_texts=2 * len(kept))
    drawn = draw(plain(real), plain(kept), None, config)
    ours, theirs = embed([drawn.real.texts, drawn.synthetic.texts], open_embedding("minilm-l6"), config.seed)
    found = _fidelity_rows(drawn, {"minilm-l6": Features(ours, theirs, None)}, config)
    return {row["name"]: row[side] for row in (each.plain() for each in found) if row["name"] in FIGURES}


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.mean(row[key] for row in rows) for key in rows[0]}


def _votes(run: Path, recipe: Any, private: list[dict[str, Any]], released: list[str]) -> Any:
    """The sums of the run's votes, and behind them those for words."""
    (stored,) = (run / "private").glob("votes-*")
    margin = Margins((len(released) + 1,), 1.0, recipe.privacy.unit)
    owners = np.unique([str(row["user"]) for row in private], return_inverse=True)[1]
    words = summed(margin, owners, rarest([str(row["text"]) for row in private], released)[:, None])
    return np.concatenate([np.frombuffer(stored.read_bytes(), np.int64), words])


def _chosen(
    candidates: Any, recipe: Any, shape: Shape, margins: Margins, sums: Any, sentences: SentenceModel, seed: int
) -> list[str]:
    """What a run keeps of its candidates, for one draw of the noise."""
    wanted = _wanted(margins, sums, seed)
    texts = cut(candidates["text"].to_pylist(), wanted[1], seed)
    cells = shape.cells(texts, sentences)
    if labels := recipe.corpus.labels:
        codes = Codes(recipe.codes, labels)
        coded = np.array([codes.index(row) for row in candidates.select(list(labels)).to_pylist()])
        wanted = [*wanted, np.bincount(coded, minlength=codes.cells) / len(coded)]
        cells = np.column_stack([cells, coded])
    return [texts[place] for place in _kept(texts, cells, wanted, recipe.generation.texts, seed)]


def _wanted(margins: Margins, sums: Any, seed: int) -> list[Any]:
    noise = np.random.default_rng(seed).normal(0, margins.noise_std_grid, margins.cells)
    return margins.split(margins.to_shares(np.rint(sums + noise).astype(np.int64)))


def _rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return round(found, 4) if isinstance(found, float) else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="finished runs with a match block")
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--public", type=Path, required=True, help="Parquet of public text, column text")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--openers", action="store_true", help="further texts, behind openers that end with a word")
    parser.add_argument("--usual", action="store_true", help="with --openers: as many texts more without any, besides")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    public = pq.read_table(arguments.public)["text"].to_pylist()
    found = [
        _rounded(rows(run, arguments.profile, public, arguments.draws, arguments.openers, arguments.usual))
        for run in arguments.runs
    ]
    print(json.dumps({"rows": found}, indent=1) if arguments.json else "\n".join(map(str, found)))


if __name__ == "__main__":
    main()
