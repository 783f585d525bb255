"""What the certificate of a run claims of membership, as profiles that attacks are compared with.

The claim is the cap (epsilon, delta) of the account. The events of the release are listed too, and have a whole privacy
profile: at small epsilons it is far below what the single pair admits, so a leak shows against it first.

A selective claim (`domain_private`) says nothing of membership. Users also take part in steps without noise, on copies
that a policy redacted, and the events list the noisy steps alone. What bounds membership there is the pair of a central
account that pays for all steps, where the certificate names one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import from_json
from rayprivacy.auditing.bounds import Profile
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.files import read_json
from rayprivacy.core.units import AccountKind, Budget

_READABLE = ("gaussian", "laplace", "poisson-sampled-gaussian")
_FOR_USERS = "For plain differential privacy"  # the figure in which a selective certificate names a central account


@dataclass(frozen=True)
class Claim:
    """A certificate, read for an audit: `budget` is the cap of its account, `bound` the pair that bounds membership
    (the cap; for a selective claim that of the account `central`, if any), `events` the profile of the release's own
    events, where the certificate tells them fully and they bound membership.
    """

    kind: AccountKind
    budget: Budget
    unit: str
    bound: Budget | None
    events: Profile | None
    central: str = ""

    @property
    def cap(self) -> Profile | None:
        """The pair that bounds membership, as a profile."""
        return Profile.claimed(self.bound.epsilon, self.bound.delta) if self.bound else None

    @property
    def strictest(self) -> Profile | None:
        """What attacks are compared with: the events where they are known, else the cap; None without a bound."""
        return self.events or self.cap


def read_claim(run: Path) -> Claim:
    """The claim of a finished run."""
    path = run / "certificate.json"
    if not path.is_file():
        raise ConfigError(f"{run} has no certificate.json: give the directory of a finished `rayprivacy run`.")
    try:
        body = read_json(path)
        budget = _pair(body)
        kind = AccountKind(body["kind"])
        unit = str(body["unit"])
        rows = list(body["events"])
        central = _central_account(body) if kind is AccountKind.SELECTIVE else None
        bound = _pair(central) if central else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is no certificate: run the recipe again with --resume.") from None
    if kind is AccountKind.SELECTIVE:
        return Claim(kind, budget, unit, bound, None, str(central["account"]) if central else "")
    return Claim(kind, budget, unit, budget, _events_profile(rows))


def _pair(facts: Mapping[str, Any]) -> Budget:
    return Budget(float(facts["epsilon"]), float(facts["delta"]))


def _central_account(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The central account that pays for all steps of a selective run, if any; others are listed beside it."""
    said = body.get("figures", {}).get(_FOR_USERS, "")
    for other in body.get("other_accounts", []):
        same = other["kind"] == AccountKind.CENTRAL and other["unit"] == body["unit"]
        if same and f"account '{other['account']}' pays for all " in said:
            return dict(other)
    return None


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
