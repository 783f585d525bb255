"""What the certificate of a run claims, as profiles that attacks are compared with.

The claim is the cap (epsilon, delta) of the account. The events of the release are listed too, and have a whole privacy
profile: at small epsilons it is far below what the single pair admits, so a leak shows against it first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import from_json
from rayprivacy.auditing.profile import Profile
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.files import read_json

_READABLE = ("gaussian", "laplace", "poisson-sampled-gaussian")


@dataclass(frozen=True)
class Claim:
    """A certificate, read for an audit.

    Attributes:
        epsilon: the cap.
        delta: the cap's delta.
        unit: whose presence is hidden.
        cap: the cap as a profile.
        events: the profile of the release's own events; None where the certificate does not tell them fully.
    """

    epsilon: float
    delta: float
    unit: str
    cap: Profile
    events: Profile | None

    @property
    def strictest(self) -> Profile:
        """What attacks are compared with: the events where they are known, else the cap."""
        return self.events or self.cap


def read_claim(run: Path) -> Claim:
    """The claim of a finished run.

    Raises:
        ConfigError: there is no certificate, or it is none.
    """
    path = run / "certificate.json"
    if not path.is_file():
        raise ConfigError(f"{run} has no certificate.json: give the directory of a finished `rayprivacy run`.")
    try:
        body = read_json(path)
        epsilon = float(body["epsilon"])
        delta = float(body["delta"])
        unit = str(body["unit"])
        rows = list(body["events"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no certificate: run the recipe again with --resume.") from None
    return Claim(epsilon, delta, unit, Profile.claimed(epsilon, delta), _events_profile(rows))


def _events_profile(rows: list[Mapping[str, Any]]) -> Profile | None:
    if not rows or any(row.get("kind") not in _READABLE for row in rows):
        return None
    try:
        return Profile.of([_event(row) for row in rows])
    except EventError:  # e.g. so little noise that its curve takes hours
        return None


def _event(row: Mapping[str, Any]) -> DpEvent:
    facts = {"kind": row["kind"], "noise_multiplier": row["sigma_eff"]}
    if row.get("q") is not None:
        facts["sampling_probability"] = row["q"]
    return SelfComposedDpEvent(from_json(facts), int(row["count"]))
