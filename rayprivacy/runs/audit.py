"""The audit of a finished run, as its recipe and its method say: how it read a row, and with how many shadow models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rayprivacy.auditing.directory import RunAudit, audit_run
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import load_key
from rayprivacy.runs.directory import CERTIFICATE
from rayprivacy.runs.method import Method
from rayprivacy.runs.recipe import Recipe
from rayprivacy.runs.scored import attacked_models
from rayprivacy.runs.shadows import train_shadows


def audit_finished(
    method: Method, recipe: Recipe, root: Path, *, users: int, shadows: int, console: Console
) -> dict[str, Any]:
    """Attack a finished run, write `audit.json` into it, and return what that says.

    At most `users` training users are attacked, and held-out ones; `shadows` models are trained first, for the stronger
    attacks.
    """
    if not method.card.has_model:
        raise ConfigError(f"method '{recipe.method}' releases no model, so it has no losses to attack.")
    if (root / CERTIFICATE).exists():  # of a run that is not finished the audit itself says so
        recipe = recipe.on_its_base(root)
    audit = RunAudit(
        root,
        recipe.model,
        recipe.privacy.unit,
        attacked_models(method, recipe),
        load_key(Path(recipe.privacy.key)),
        users,
        texts=method.card.texts,
    )
    if shadows:
        audit.check()
        audit = replace(audit, shadows=train_shadows(method, root, recipe, audit.population(), shadows, console))
    return audit_run(audit)
