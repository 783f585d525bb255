"""Audit a finished run as its recipe says: how it read a row, and which shadow models it is compared with."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rayprivacy.audit.directory import RunAudit, audit_run
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import load_key
from rayprivacy.generation.codes import Codes
from rayprivacy.methods.generator_recipe import GeneratorRecipe
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.recipes import load_recipe
from rayprivacy.methods.seqpate_recipe import SeqPateRecipe
from rayprivacy.methods.shadows import train_shadows


def audit_finished(root: Path, users: int, shadows: int, console: Console) -> dict[str, Any]:
    """Attack a finished run, write `audit.json` into it, and return what that says.

    Args:
        root: the run directory, not yet cleaned.
        users: training users that are attacked, at most, and held-out ones.
        shadows: models that are trained first, for the stronger attacks; 0 leaves these out.
        console: where the progress of shadow models is shown.

    Raises:
        ConfigError: the run is not finished, was cleaned, has no held-out users, or protects phrases.
        KeyFileError: the key is not that of the run.
    """
    recipe = load_recipe(root / "recipe.yaml")
    prefix, max_tokens = _reading(recipe)
    key = load_key(Path(recipe.privacy.key))
    audit = RunAudit(root, recipe.model, recipe.privacy.unit, prefix, max_tokens, key, users)
    if shadows:
        audit.check()
        audit = replace(audit, shadows=train_shadows(root, recipe, audit.population(), shadows, console))
    return audit_run(audit)


def _reading(recipe: Recipe) -> tuple[Callable[[Mapping[str, Any]], str], int]:
    """How the run read a row: the control code in front of it, and how many tokens of its text."""
    if isinstance(recipe, GeneratorRecipe):
        codes = Codes(recipe.codes, recipe.corpus.labels)
        return lambda row: codes.text(codes.index(row)), recipe.training.max_tokens
    if isinstance(recipe, SeqPateRecipe):
        return lambda row: "", recipe.teachers.max_tokens
    raise ConfigError(f"'method' is {recipe.method!r}: audit takes runs of generator and seqpate.")
