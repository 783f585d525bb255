"""Sentences about what a claim rests on and the software cannot check. Plans choose, certificates print them.

A method adds its own in its plan, and each block brings its own; where in the certificate a sentence stands is a matter
of what it is about (`Where`).
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeAlias

from rayprivacy.core.units import PrivacyUnit


class Where(IntEnum):
    """What a sentence is about, in the order of the certificate."""

    CLAIM = 0
    UNIT = 1
    PUBLIC = 2
    PRETRAINING = 3
    RELEASED = 4
    STEPS = 5
    NOISE = 6
    TIME = 7


Placed: TypeAlias = tuple[Where, str]

OF_UNIT = {
    PrivacyUnit.USER: (
        "Every user's text carries one and the same user id in the corpus; who uses two ids is two users.",
    ),
    PrivacyUnit.RECORD: (
        "What must be hidden is in one record: one user's text with its labels; repeats with another user, wording or "
        "labels are other records, and a user with many records is protected as a group only.",
    ),
    PrivacyUnit.PHRASE: (
        "What must be hidden is a line of the phrases file, spelled as there up to letter case and whatever stands "
        "between its words; users, records, the text around a phrase and the list itself are not protected.",
        "max_shards_per_phrase is public and was not chosen by counting phrases in the corpus.",
    ),
}
DISCRETE_NOISE = {
    "gaussian": "The discrete Gaussian on a grid of 2^-20 is accounted as the continuous one.",
    "laplace": "The discrete Laplace on a grid of 2^-20 is accounted as the continuous one, except by pure epsilon.",
}
TIMING = "Running time and memory are not protected."
CLUSTER = "Who sees the cluster's dashboard, its metrics, its logs or its disks sees how many rows the corpus has."


def at(where: Where, *sentences: str) -> tuple[Placed, ...]:
    """Some sentences about one thing."""
    return tuple((where, sentence) for sentence in sentences)


def in_order(said: Iterable[Placed]) -> tuple[str, ...]:
    """The sentences in the order of the certificate, each once."""
    return tuple(dict.fromkeys(sentence for _, sentence in sorted(said, key=lambda each: each[0])))


def of_unit(unit: PrivacyUnit) -> tuple[Placed, ...]:
    """What any claim about a unit rests on."""
    return (*at(Where.UNIT, *OF_UNIT[unit]), *at(Where.TIME, TIMING, CLUSTER))


def of_training(unit: PrivacyUnit, bands: int = 1, microbatches: int | None = None) -> tuple[str, ...]:
    """What the claim of DP-SGD rests on, whatever is trained; noise is correlated over `bands` steps."""
    groups = (
        f"A keyed hash puts each {unit}, alone, into one of {bands} groups, which take turns: no {unit} takes part "
        f"twice in less than {bands} steps. The noise of {bands} steps in a row is correlated, and a {unit} moves each "
        f"such window by one clipped gradient (Choquette-Choo et al., 2023), so that {bands} steps are one event.",
    )
    means = (
        f"A keyed hash puts each {unit}, alone and anew at every step, into one of {microbatches} micro-batches. The "
        f"mean gradient of a micro-batch is clipped, so that one {unit} moves their sum by twice the clipping norm, to "
        "which the noise is scaled.",
    )
    return (
        *(groups if bands > 1 else ()),
        *(means if microbatches is not None else ()),
        f"Who takes part in a step is decided by a keyed coin for each {unit}, alone (Poisson sampling).",
        "The noise of the steps is a stream of ChaCha20 under the key file: the key file stays secret for good, "
        "because whoever has it can take the noise off the model again.",
        "The noise of the steps is Gaussian in floating point, accounted as exact.",
        "Clipped gradients are added up in floating point. One more user may change how the sum of all others is "
        "rounded, by about 1e-16 of it with LoRA and without DeepSpeed, and by about 1e-7 of it otherwise; that is "
        "neglected.",
    )
