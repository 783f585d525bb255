"""Canaries: users with secrets that are planted in a corpus, and the list by which they are found again.

Every repetition of a secret is a row of a user of its own. So a secret that occurs once is protected by exactly the
epsilon of the certificate, and one that k users share by that of a group of k: repetitions of 10 or 100 show what
memorisation looks like, and their leak refutes nothing.

The plan is a small file without any secret: with the key that planted them, the secrets are computed again. Planting
changes the corpus, so a run on a planted corpus is a run of its own, and never the release: see `AuditConfig`.

>>> from rayprivacy.core.keys import Key
>>> plan = CanaryPlan(kinds=("phone",), repetitions=(1, 10))
>>> canary_rows(plan, Key.for_tests()).num_rows
11
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pydantic import Field

from rayprivacy.auditing.secrets import CANDIDATES, KINDS, Kind, Secret, candidates
from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError, KeyFileError
from rayprivacy.core.files import private_directory, read_json, write_json
from rayprivacy.core.keys import Key

PLAN_FILE = "canaries.json"
_SCHEMA_VERSION = 1


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
    """One planted secret; it does not print itself.

    Attributes:
        secret: what was planted.
        place: its number among the candidates of its kind.
        users: the ids of the users who carry it.
    """

    secret: Secret
    place: int
    users: tuple[str, ...]


def canaries(plan: CanaryPlan, key: Key) -> list[Canary]:
    """The canaries of a plan; the key alone decides which candidates they are.

    Raises:
        ConfigError: a number of repetitions is not positive, or there are more of them than candidates.
    """
    if min(plan.repetitions) < 1 or len(plan.repetitions) > plan.candidates:
        raise ConfigError(f"repetitions is {plan.repetitions}: give numbers of at least 1, fewer than candidates.")
    return [canary for kind in plan.kinds for canary in _of_kind(kind, plan, key)]


def canary_rows(plan: CanaryPlan, key: Key) -> pa.Table:
    """The rows that are planted, one for each user, with the columns `user` and `text`."""
    rows = [(user, canary.secret.sentence) for canary in canaries(plan, key) for user in canary.users]
    texts = pa.array([text for _, text in rows], pa.large_string())
    return pa.table({"user": pa.array([user for user, _ in rows], pa.string()), "text": texts})


def record_plan(run: Path, plan: CanaryPlan, key: Key) -> Path:
    """Write `private/canaries.json` into a run directory, before or after the run; it holds no secret.

    Args:
        run: the run directory.
        plan: what was planted.
        key: what it was planted with; `rayprivacy audit` needs the same one as `privacy.key`.
    """
    path = private_directory(run / "private") / PLAN_FILE
    body = {"schema_version": _SCHEMA_VERSION, "plan": plan.model_dump(mode="json"), "key": _fingerprint(key)}
    write_json(path, body)
    return path


def read_plan(run: Path, key: Key) -> CanaryPlan | None:
    """The plan that `record_plan` wrote; None where nothing was planted.

    Raises:
        ConfigError: the file is not what `record_plan` writes.
        KeyFileError: the canaries were planted with another key.
    """
    path = run / "private" / PLAN_FILE
    if not path.exists():
        return None
    try:
        body = read_json(path)
    except ValueError:
        body = None
    if not isinstance(body, Mapping) or body.get("schema_version") != _SCHEMA_VERSION:
        raise ConfigError(f"{PLAN_FILE} of the run is no plan of canaries of this version: record the plan again.")
    if body.get("key") != _fingerprint(key):
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
        Canary(among[place], place, tuple(_user(key, kind, number, copy) for copy in range(repetitions)))
        for number, (place, repetitions) in enumerate(zip(places, plan.repetitions, strict=True))
    ]


def _user(key: Key, kind: str, number: int, copy: int) -> str:
    return f"canary-{key.digest('canary-user', kind, number, copy)[:20]}"


def _fingerprint(key: Key) -> str:
    return key.digest("canary-plan")
