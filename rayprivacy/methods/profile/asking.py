"""The recipe of a profile that asks for a share of an account: which terms it has, and the epsilon of that share."""

import math
from collections.abc import Callable
from contextlib import closing

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.database import ledger_file
from rayprivacy.ledger.rules import Rule
from rayprivacy.methods.profile.plan import plan_run
from rayprivacy.methods.profile.recipe import ProfileRecipe
from rayprivacy.runs.account import whole

SHARE = 0.02
_TURNS = 8


def recipe_of(blocks: Json, epsilon: float | None, share: float | None) -> ProfileRecipe:
    """The recipe with the terms of its account, for an epsilon or for a share of what the account has in all.

    Raises:
        ConfigError: there is no such account, or it cannot pay for what is asked.
    """
    if epsilon is not None and share is not None:
        raise ConfigError(f"epsilon is {epsilon:g} and share {share:g}: give one of them.")
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"share is {share:g}: give a part of the account's budget, above 0 and at most 1.")
    account, rule = _terms(ProfileRecipe.parse({**blocks, "method": "profile"}))
    terms = {"delta": account.delta, "composition": account.composition, "corpus": account.corpus}

    def asking(value: float) -> ProfileRecipe:
        privacy = blocks["privacy"] | terms | {"epsilon": value}
        return ProfileRecipe.parse({**blocks, "method": "profile", "privacy": privacy})

    found = asking(epsilon or account.epsilon)
    if found.keys and account.composition != "pld" and not rule.thresholds((0,) * rule.size)[1]:
        raise ConfigError(
            f"account '{account.name}' keeps no part of its delta for thresholds, and words and labels have one: count"
            " none (keywords 0, and no labels), or open an account with `rayprivacy ledger create --threshold-delta`."
        )
    return found if epsilon is not None else asking(_epsilon_of(asking, rule, account, share or SHARE))


def _terms(recipe: ProfileRecipe) -> tuple[Account, Rule]:
    privacy = recipe.privacy
    file = ledger_file(privacy.ledger)
    if file is None or file.exists():
        with closing(privacy.open_ledger()) as ledger:
            if any(each.name == privacy.account for each in ledger.accounts()):
                return ledger.terms(privacy.account)
    raise ConfigError(
        f"account '{privacy.account}' is not in {privacy.ledger}: open it first, with the budget of all that the corpus"
        f" will ever pay for: `rayprivacy ledger create --ledger {privacy.ledger} --account {privacy.account} --epsilon"
        " 3 --threshold-delta 1e-7`."
    )


def _epsilon_of(asking: Callable[[float], ProfileRecipe], rule: Rule, account: Account, share: float) -> float:
    """The epsilon that takes this share of the account, by its own rule; shares grow about as epsilon squared."""
    epsilon = account.epsilon * math.sqrt(share)
    for _ in range(_TURNS):
        event = whole(plan_run(asking(epsilon)).charges)
        epsilon = min(epsilon * math.sqrt(share / rule.share(rule.cost(event, (0,) * rule.size))), account.epsilon)
    return float(f"{epsilon:.6g}")
