"""The judge of answers (AttributionLens): does a text support an answer to a question, and how surely.

A logistic regression on what words tell: is the answer in the text, how much of the question is in the sentence that
has the answer, is anything nearer to the question's words than the answer is. On top may come two other opinions: the
agreement of an evidence reader, a figure for each claim, and an encoder that reads the claim with the sentences
nearest to it. The regression learns from claims that the encoder has not seen, so that it trusts it as far as it may.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import SHARED, made_folder, write_atomic
from rayprivacy.questions.answers import holds, normalised
from rayprivacy.questions.attribution import LABELS, Claim, Label
from rayprivacy.questions.judge_encoder import ClaimEncoder
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.passages import sentences
from rayprivacy.questions.settings import JudgeConfig

Array = npt.NDArray[np.float64]
_FILE = "judge.json"
_NEAR = 5.0  # words; what is much further from the answer counts for little
_PENALTY = 1e-3  # on squared weights
_STACKED = 4  # every fourth question is kept from the encoder, and the regression learns from it


def told_by_words(claim: Claim, idf: Idf) -> list[float]:
    """What the words of a claim and its reference tell: ten figures.

    The last two are of answers that are statements, such as a dialogue's: what counts there is how many words the
    reference lacks. Of a name, its not being there says more than any share of words does.

    >>> told = told_by_words(Claim("Who won?", "the Jets", "Jets won. It rained."), Idf({}, 1.0))
    >>> told[:5]  # the answer and its words are there; of the question half is in the text, and in two best sentences
    [1.0, 1.0, 0.5, 0.5, 0.5]
    """
    question, answer, reference = claim
    pieces = _sentences(reference)
    overlaps = [idf.overlap(question, piece) for piece in pieces]
    own = [overlap for piece, overlap in zip(pieces, overlaps, strict=True) if holds(piece, answer)]
    peak, near = _nearness(claim, idf)
    said, there, inside = normalised(answer).split(), set(normalised(reference).split()), holds(reference, answer)
    found = sum(word in there for word in said)
    return [
        float(inside),
        found / max(1, len(said)),
        idf.overlap(question, reference),
        max(overlaps, default=0.0),
        max(own, default=0.0),
        peak,
        near - peak if inside else 0.0,
        float(holds(question, answer)),
        math.log1p(len(said)),
        math.log1p(len(said) - found),
    ]


TOLD = 10


def _nearness(claim: Claim, idf: Idf) -> tuple[float, float]:
    """How near the question's words, each by its idf, are to some other word of the reference, and to the answer."""
    places, answer = words(claim.reference), words(claim.answer)
    asked = set(words(claim.question)) - set(answer)
    whole, at = max(1e-9, sum(idf[word] for word in sorted(asked))), np.arange(len(places))
    total = np.zeros(len(places))
    for word in sorted(asked & set(places)):
        own = np.array([place for place, each in enumerate(places) if each == word])
        total += idf[word] / whole * _NEAR / (_NEAR + np.abs(at[:, None] - own).min(axis=1))
    size = len(answer)
    starts = [place for place in range(len(places)) if size and places[place : place + size] == answer]
    others = [place for place, word in enumerate(places) if word not in asked]
    return max(total[others], default=0.0), max((total[start : start + size].max() for start in starts), default=0.0)


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def nearest(claim: Claim, idf: Idf, most: int) -> str:
    """The sentences of a reference that share most with a claim, in their order: one, and others up to `most` words."""
    pieces, asked = _sentences(claim.reference), f"{claim.question} {claim.answer}"
    kept: list[int] = []
    for place in sorted(range(len(pieces)), key=lambda place: -idf.overlap(asked, pieces[place])):
        if not kept or sum(len(pieces[each].split()) for each in (*kept, place)) <= most:
            kept.append(place)
    return " ".join(pieces[place] for place in sorted(kept))


@dataclass(frozen=True)
class Judge:
    """Says whether a text supports an answer to a question: attributable, extrapolatory or contradictory.

        from rayprivacy import Judge
        judge = Judge.load("runs/mine/questions/model/judge")
        label, probability = judge("Who won?", "the Jets", "The Jets won. It rained.")

    Attributes:
        idf: how rare words are in the released or public text that it was trained on.
        weights: of what words tell, the agreement, the encoder's logits if there is one, and 1; [figures, labels].
        agreement: the mean of those that it was trained on, which stands for one that is not given.
        encoder: None for a judge by words alone.
    """

    idf: Idf
    weights: Array
    agreement: float = 0.0
    encoder: ClaimEncoder | None = None

    def __call__(self, question: str, answer: str, reference: str) -> tuple[Label, float]:
        """The likeliest label, and its probability."""
        (found,) = self.probabilities([Claim(question, answer, reference)])
        return LABELS[int(found.argmax())], float(found.max())

    def probabilities(self, claims: Sequence[Claim], agreement: Sequence[float] | None = None) -> Array:
        """Of each label for each claim, [claims, labels]; `agreement` of an evidence reader, a figure for each."""
        return np.asarray(softmax(self.figures(claims, agreement) @ self.weights, axis=1))

    def figures(self, claims: Sequence[Claim], agreement: Sequence[float] | None = None) -> Array:
        """What the regression reads of each claim, [claims, figures]."""
        told = np.array([told_by_words(claim, self.idf) for claim in claims]).reshape(-1, TOLD)
        columns = [told, np.full(len(claims), self.agreement) if agreement is None else np.array(agreement)]
        if self.encoder is not None:
            columns.append(self.encoder.logits(_pairs(claims, self.idf, self.encoder.max_tokens)))
        return np.column_stack([*columns, np.ones(len(claims))])

    def save(self, folder: Path) -> None:
        """Write the folder that `load` reads."""
        made_folder(folder, "the judge's folder")
        if self.encoder:
            self.encoder.save(folder)
        content = {
            "labels": LABELS,
            "weights": self.weights.tolist(),
            "agreement": self.agreement,
            "idf": {"weights": dict(self.idf.weights), "unseen": self.idf.unseen},
            "max_tokens": self.encoder and self.encoder.max_tokens,
        }
        write_atomic(folder / _FILE, json.dumps(content).encode(), SHARED)

    @staticmethod
    def load(folder: str | Path) -> "Judge":
        """Load the folder `model/judge` of a question set.

        Raises:
            ConfigError: it holds no judge.
        """
        try:
            content = json.loads((Path(folder) / _FILE).read_text())
            idf = Idf(dict(content["idf"]["weights"]), float(content["idf"]["unseen"]))
            judge, tokens = Judge(idf, np.array(content["weights"]), content["agreement"]), content["max_tokens"]
            if len(judge.weights) != TOLD + 2 + len(LABELS) * bool(tokens):
                raise ValueError("another number of figures")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{folder} holds no judge that can be read ({type(error).__name__}): name one.") from None
        return replace(judge, encoder=ClaimEncoder.load(str(folder), tokens)) if tokens else judge


def trained_judge(
    claims: Sequence[Claim],
    labels: Sequence[Label],
    idf: Idf,
    config: JudgeConfig,
    agreement: Sequence[float] | None = None,
) -> Judge:
    """Train a judge on released or public claims, such as `attribution.simulated` makes.

    Args:
        claims: of each question several, so that one label is not told by the question alone.
        labels: one for each claim; one that no claim has is never said.
        idf: of the passages, which are released or public.
        config: the block `judge`.
        agreement: of an evidence reader, a figure for each claim.

    Raises:
        ConfigError: the lists differ in length, or the encoder cannot be had or trained.
    """
    given = len(claims) if agreement is None else len(agreement)
    if not 0 < len(claims) == len(labels) == given:
        raise ConfigError(
            f"{len(claims)} claims were given with {len(labels)} labels and {given} agreements: give one"
            " of each for every claim, and a claim."
        )
    agreed, numbers = agreement or [0.0] * len(claims), [LABELS.index(label) for label in labels]
    encoder, chosen = None, [*range(len(claims))]
    if config.encoder is not None:
        examples = [*zip(_pairs(claims, idf, config.max_tokens), numbers, strict=True)]
        questions = {question: place for place, question in enumerate(dict.fromkeys(each.question for each in claims))}
        turns = [questions[claim.question] % _STACKED for claim in claims]
        learnt, kept = (
            [one for one, turn in zip(examples, turns, strict=True) if (turn == 0) == apart] for apart in (False, True)
        )
        encoder = ClaimEncoder.trained(learnt, kept, config)
        chosen = [place for place in chosen if turns[place] == 0]
    agreed = [agreed[place] for place in chosen]
    judge = Judge(idf, np.zeros(0), float(np.mean(agreed)), encoder)
    figures = judge.figures([claims[place] for place in chosen], agreed)
    return replace(judge, weights=_regression(figures, np.array(numbers)[chosen]))


def _pairs(claims: Sequence[Claim], idf: Idf, tokens: int) -> list[tuple[str, str]]:
    """What the encoder reads of claims; half of its tokens are for words of the reference, which may take several."""
    return [(f"{claim.question} {claim.answer}", nearest(claim, idf, tokens // 2)) for claim in claims]


def _regression(figures: Array, numbers: npt.NDArray[np.int64]) -> Array:
    """The weights of a multinomial logistic regression, [figures, labels]; the last figure is always 1."""
    spread = np.append(figures[:, :-1].std(axis=0), 0)
    scale = np.where(spread > 0, spread, 1)
    columns, target = figures / scale, np.eye(len(LABELS))[numbers]

    def loss(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(-1, len(LABELS))
        scores = log_softmax(columns @ weights, axis=1)
        pull = columns.T @ (np.exp(scores) - target) / len(columns) + _PENALTY * weights
        return _PENALTY / 2 * float((flat**2).sum()) - float((target * scores).sum()) / len(columns), pull.ravel()

    found: Any = minimize(loss, np.zeros(columns.shape[1] * len(LABELS)), jac=True, method="L-BFGS-B")
    return np.asarray(found.x.reshape(-1, len(LABELS)) / scale[:, None])
