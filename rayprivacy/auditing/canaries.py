"""Canaries: users with secrets that are planted in a corpus, found again by a list, and what a model shows of them.

Every repetition of a secret is a row of a user of its own. So a secret that occurs once is protected by exactly the
epsilon of the certificate, and one that k users share by that of a group of k: repetitions of 10 or 100 show what
memorisation looks like, and their leak refutes nothing.

The plan is a small file without any secret: with the key that planted them, the secrets are computed again. Planting
changes the corpus, so a run on a planted corpus is a run of its own, and never the release: see `AuditConfig`.

>>> from rayprivacy.core.keys import Key
>>> plan = CanaryPlan(kinds=("phone",), repetitions=(1, 10))
>>> canary_rows(plan, Key.for_tests()).num_rows
11

A *canary* is a sentence with one made-up secret in it. How far a model has memorised the secret is measured against the
other candidates, so they must be alike: all candidates of a kind share one sentence and one format, and the key alone
decides which one is planted. None of them belongs to anybody: surnames are made of syllables, the calling code 999 is
assigned to no country, and mail goes to the example domains of RFC 2606.

Exposure (Carlini et al., USENIX Security 2019) is log2 |R| - log2 rank, where R are the candidates and rank is the
place of the planted one when they are ordered by the model's loss. A model that never saw the secret ranks it
uniformly: its exposure is about 1.44 bits on average. It reaches log2 |R| (13.3 bits for 10,000) when the secret comes
first. Rank and exposure are no bounds on epsilon: they rest on one draw of the training.

A planted candidate is drawn uniformly, so without it in the corpus its rank among R candidates is uniform, and with it

    P[rank <= k] <= exp(epsilon) k / R + delta

for every (epsilon, delta) that the mechanism satisfies. The right side at the rank that was seen is a p-value of the
claim; it is stated for secrets of a single user only, which is what the certificate is about, and not where a selective
claim bounds nothing of the kind.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from rayprivacy.auditing.bounds import Profile
from rayprivacy.auditing.population import Population
from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError, KeyFileError
from rayprivacy.core.files import private_directory, read_json, write_json
from rayprivacy.core.keys import Key

Kind = Literal["name", "address", "phone", "email", "plate"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Losses = Callable[[Sequence[str]], npt.NDArray[np.float64]]
CANDIDATES = 10_000
PLAN_FILE = "canaries.json"
_SCHEMA_VERSION = 1

_FIRST = "Ada Boris Clara Elena Farid Greta Hugo Ines Jonas Kira Luca Mona Nils Olga Pedro Rosa Tara".split()  # noqa: SIM905
_SYLLABLES = "bal cor dun fel gri hol jas kem lor mav nel pom quar rin sol tev ulm vos wex yar zim dal fen".split()  # noqa: SIM905
_STREETS = "Maple Harbour Mill Station Orchard Chapel River Castle Garden Forest Bridge Meadow".split()  # noqa: SIM905
_WAYS = "Street Road Lane Avenue Close Square".split()  # noqa: SIM905
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"

# Short, because a method that cuts texts after some 30 tokens must not cut the secret off.
_SENTENCES: dict[Kind, str] = {
    "name": "the person who helped me is called {}",
    "address": "please send it to my new home, {}",
    "phone": "just call me, my number is {}",
    "email": "write to me, my address is {}",
    "plate": "we will come by car, the plate is {}",
}


@dataclass(frozen=True, repr=False)
class Secret:
    """One candidate as it is written, and the part that identifies it without the rest; it does not print itself."""

    kind: Kind
    whole: str
    part: str

    @property
    def sentence(self) -> str:
        """The canary: the kind's sentence with this secret at its end."""
        return _SENTENCES[self.kind].format(self.whole)

    def is_in(self, squeezed_text: str) -> bool:
        """Whether a text, already `squeezed`, holds the secret or its identifying part."""
        return squeezed(self.part) in squeezed_text


class _Draws:
    """Independent choices from a key, for one try at one candidate."""

    def __init__(self, key: Key, kind: str, number: int) -> None:
        self._state = key.integer("canary-candidate", kind, number)

    def below(self, most: int) -> int:
        """A number from 0 up to `most`, exclusive."""
        self._state, found = divmod(self._state, most)
        return found

    def of(self, choices: Sequence[str]) -> str:
        """One of several."""
        return choices[self.below(len(choices))]


def candidates(kind: Kind, key: Key, number: int = CANDIDATES) -> list[Secret]:
    """The distinct candidates of a kind; with the same key, fewer of them are the first of more."""
    if kind not in _MAKERS:
        raise ConfigError(f"kind is {kind!r}: use one of {', '.join(KINDS)}.")
    if not 2 <= number <= CANDIDATES:
        raise ConfigError(f"candidates is {number}: give a number from 2 to {CANDIDATES}.")
    found: dict[str, Secret] = {}
    attempts = itertools.count()
    while len(found) < number:
        whole, part = _MAKERS[kind](_Draws(key, kind, next(attempts)))
        found.setdefault(squeezed(part), Secret(kind, whole, part))  # no two candidates are found for one another
    return list(found.values())


def squeezed(text: str) -> str:
    """Letters and digits alone, in lower case: spaces, dots and dashes hide no leak."""
    return re.sub(r"[\W_]+", "", text).casefold()


def _surname(draw: _Draws) -> str:
    return "".join(draw.of(_SYLLABLES) for _ in range(4)).capitalize()


def _digits(draw: _Draws, count: int) -> str:
    return f"{draw.below(10**count):0{count}d}"


def _name(draw: _Draws) -> tuple[str, str]:
    surname = _surname(draw)
    return f"{draw.of(_FIRST)} {surname}", surname


def _address(draw: _Draws) -> tuple[str, str]:
    house = f"{draw.below(9000) + 1000} {draw.of(_STREETS)} {draw.of(_WAYS)}"
    return f"{house}, {_surname(draw)}", house


def _phone(draw: _Draws) -> tuple[str, str]:
    number = " ".join(_digits(draw, 3) for _ in range(3))
    return f"+999 {number}", number


def _email(draw: _Draws) -> tuple[str, str]:
    local = f"{draw.of(_FIRST).lower()}.{_surname(draw).lower()}{_digits(draw, 2)}"
    return f"{local}@{draw.of(('example.com', 'example.org', 'example.net'))}", local


def _plate(draw: _Draws) -> tuple[str, str]:
    first, last = ("".join(draw.of(_LETTERS) for _ in range(count)) for count in (2, 3))
    plate = f"{first} {_digits(draw, 4)} {last}"
    return plate, plate


_MAKERS: dict[Kind, Callable[[_Draws], tuple[str, str]]] = dict(
    zip(KINDS, (_name, _address, _phone, _email, _plate), strict=True)
)


class CanaryPlan(Config):
    """What is planted: one secret of each kind at each number of repetitions.

    Attributes:
        kinds: kinds of the secrets.
        repetitions: how many users carry a secret, for each secret of a kind.
        candidates: how many candidates of a kind there are; the planted ones are among them.
    """

    kinds: tuple[Kind, ...] = Field(default=KINDS, min_length=1)
    repetitions: tuple[int, ...] = Field(default=(1, 10, 100), min_length=1)
    candidates: int = Field(default=CANDIDATES, ge=2, le=CANDIDATES)


@dataclass(frozen=True, repr=False)
class Canary:
    """One planted secret, its place among the candidates of its kind, and the users who carry it; not printed."""

    secret: Secret
    place: int
    users: tuple[str, ...]


def canaries(plan: CanaryPlan, key: Key) -> list[Canary]:
    """The canaries of a plan; the key alone decides which candidates they are."""
    if min(plan.repetitions) < 1 or len(plan.repetitions) > plan.candidates:
        raise ConfigError(f"repetitions is {plan.repetitions}: give numbers of at least 1, fewer than candidates.")
    return [canary for kind in plan.kinds for canary in _of_kind(kind, plan, key)]


def canary_rows(plan: CanaryPlan, key: Key) -> pa.Table:
    """The rows that are planted, one for each user, with the columns `user` and `text`."""
    rows = [(user, canary.secret.sentence) for canary in canaries(plan, key) for user in canary.users]
    texts = pa.array([text for _, text in rows], pa.large_string())
    return pa.table({"user": pa.array([user for user, _ in rows], pa.string()), "text": texts})


def record_plan(run: Path, plan: CanaryPlan, key: Key) -> Path:
    """Write `private/canaries.json` into a run directory; it holds no secret: an audit needs the key of the plan."""
    path = private_directory(run / "private") / PLAN_FILE
    digest = key.digest("canary-plan")
    write_json(path, {"schema_version": _SCHEMA_VERSION, "plan": plan.model_dump(mode="json"), "key": digest})
    return path


def read_plan(run: Path, key: Key) -> CanaryPlan | None:
    """The plan that `record_plan` wrote, checked against the key; None where nothing was planted."""
    path = run / "private" / PLAN_FILE
    if not path.exists():
        return None
    try:
        body = read_json(path)
    except ValueError:
        body = None
    if not isinstance(body, Mapping) or body.get("schema_version") != _SCHEMA_VERSION:
        raise ConfigError(f"{PLAN_FILE} of the run is no plan of canaries of this version: record the plan again.")
    if body.get("key") != key.digest("canary-plan"):
        raise KeyFileError(f"{PLAN_FILE} of the run is of another key: plant with the key that privacy.key names.")
    return CanaryPlan.parse(body["plan"])


def _of_kind(kind: Kind, plan: CanaryPlan, key: Key) -> list[Canary]:
    among = candidates(kind, key, plan.candidates)
    places: list[int] = []
    for number in range(len(plan.repetitions)):
        attempt = 0
        while (place := key.integer("canary-planted", kind, number, attempt) % len(among)) in places:
            attempt += 1
        places.append(place)
    return [
        Canary(
            among[place],
            place,
            tuple(f"canary-{key.digest('canary-user', kind, number, copy)[:20]}" for copy in range(repetitions)),
        )
        for number, (place, repetitions) in enumerate(zip(places, plan.repetitions, strict=True))
    ]


def rank(losses: npt.NDArray[np.float64], planted: int) -> float:
    """The place of the planted candidate, 1 being the least loss; equal losses share the middle of their places."""
    own = losses[planted]
    return float(1 + (losses < own).sum() + (np.count_nonzero(losses == own) - 1) / 2)


def exposure(losses: npt.NDArray[np.float64], planted: int) -> float:
    """Bits by which the rank of the planted candidate falls short of the number of candidates."""
    return math.log2(len(losses)) - math.log2(rank(losses, planted))


def ranks(scorer: Losses, among: Sequence[Secret], planted: Sequence[int]) -> list[float]:
    """Ranks of planted secrets by loss, among candidates that were not planted: frequent ones push none down."""
    losses = scorer([secret.sentence for secret in among])
    others = np.delete(losses, np.asarray(planted))
    return [rank(np.append(others, losses[place]), len(others)) for place in planted]


def leaked(secrets: Sequence[Secret], texts: Iterable[str]) -> list[bool]:
    """Whether each secret, or its identifying part, stands in some text; case, spaces and punctuation do not count."""
    found = [False] * len(secrets)
    for text in map(squeezed, texts):
        found = [was or secret.is_in(text) for was, secret in zip(found, secrets, strict=True)]
    return found


def planted_users(plan: CanaryPlan | None, key: Key) -> set[str]:
    """The ids of all canary users."""
    return {user for canary in canaries(plan, key) for user in canary.users} if plan else set()


def canary_figures(
    scorer: Losses, plan: CanaryPlan, population: Population, synthetic: Sequence[str], claim: Profile | None, most: int
) -> list[Mapping[str, Any]]:
    """One entry for each canary, by kind and number of users, without its secret; at most `most` candidates of a kind
    are scored, the planted ones among them. Without a claim that bounds membership, no chance is admitted or not.
    """
    planted = canaries(plan, population.key)
    trained = population.training_users({user for canary in planted for user in canary.users})
    figures: list[Mapping[str, Any]] = []
    for kind in plan.kinds:
        own = [canary for canary in planted if canary.secret.kind == kind]
        listed, places = _scored(kind, own, plan, population.key, most)
        compared = len(listed) - len(own) + 1
        placed = ranks(scorer, listed, places)
        out = leaked([canary.secret for canary in own], synthetic)
        for canary, rank, verbatim in zip(own, placed, out, strict=True):
            users = sum(user in trained for user in canary.users)
            chance = claim.most_hits(min(1.0, rank / compared)) if claim and users == 1 else None
            figures.append(
                {"kind": kind, "users": len(canary.users), "trained_users": users, "candidates": compared, "rank": rank}
                | {"exposure": round(math.log2(compared / rank), 3), "verbatim": verbatim, "chance_admitted": chance}
            )
    return figures


def least_chance(figures: Sequence[Mapping[str, Any]]) -> float | None:
    """The least admitted chance, times the number of canaries it is the least of; None without single-user ones."""
    chances = [each["chance_admitted"] for each in figures if each["chance_admitted"] is not None]
    return min(1.0, min(chances) * len(chances)) if chances else None


def _scored(kind: Kind, own: Sequence[Canary], plan: CanaryPlan, key: Key, most: int) -> tuple[list[Secret], list[int]]:
    """The planted candidates first, then others of the kind; and the places of the planted ones."""
    planted = {canary.place for canary in own}
    among = candidates(kind, key, plan.candidates)
    rest = [secret for place, secret in enumerate(among) if place not in planted]
    return [*(canary.secret for canary in own), *rest][: max(most, len(own) + 1)], list(range(len(own)))
