"""The mechanisms that the plan of a recipe carries."""

from typing import Any

from rayprivacy.methods.registry import method_of
from rayprivacy.runs.recipe import Recipe


def mechanism(recipe: Recipe, stage: str) -> Any:
    """The mechanism of a stage; None where it charges nothing."""
    return method_of(recipe).planned(recipe).stage(stage).mechanism


def mechanisms(recipe: Recipe) -> dict[str, Any]:
    plan = method_of(recipe).planned(recipe)
    return {stage.name: stage.mechanism for stage in plan.stages if stage.mechanism is not None}
