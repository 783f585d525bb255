"""Figures of the canaries that were planted into an audited run: rank, exposure, leaks, and what the claim admits.

A planted candidate is drawn uniformly, so without it in the corpus its rank among R candidates is uniform, and with it

    P[rank <= k] <= exp(epsilon) k / R + delta

for every (epsilon, delta) that the mechanism satisfies. The right side at the rank that was seen is a p-value of the
claim; it is stated for secrets of a single user only, which is what the certificate is about, and not where a selective
claim bounds nothing of the kind.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rayprivacy.auditing.canaries import Canary, CanaryPlan, canaries
from rayprivacy.auditing.exposure import Losses, leaked, ranks
from rayprivacy.auditing.population import Population
from rayprivacy.auditing.profile import Profile
from rayprivacy.auditing.secrets import Kind, Secret, candidates
from rayprivacy.core.keys import Key


def planted_users(plan: CanaryPlan | None, key: Key) -> set[str]:
    """The ids of all canary users."""
    return {user for canary in canaries(plan, key) for user in canary.users} if plan else set()


def canary_figures(
    scorer: Losses,
    plan: CanaryPlan,
    population: Population,
    synthetic: Sequence[str],
    claim: Profile | None,
    most: int,
) -> list[dict[str, Any]]:
    """One entry for each canary, by kind and number of users; no secret is in it.

    At most `most` candidates of a kind are scored, the planted ones among them. Without a claim that bounds membership,
    no chance is admitted or not.
    """
    planted = canaries(plan, population.key)
    trained = population.training_users({user for canary in planted for user in canary.users})
    figures: list[dict[str, Any]] = []
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
