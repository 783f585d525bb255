"""What a recipe leaves to the machines is decided once, on the driver, before anything is computed or charged.

`model.dtype: auto` becomes the number format that every machine of the run computes fast in. It is part of the release
id: another format is another computation on private text, which must not share its noise. `generation.engine: auto`
becomes the fastest engine that is installed and takes the base model; it is not part of the release id, since sampling
is post-processing. Decisions stand in the resolved recipe of the run directory, so that all processes agree and a
resumed run keeps them, wherever it goes on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rayprivacy.core.errors import ClusterError
from rayprivacy.core.files import Json
from rayprivacy.generation.settings import TRANSFORMERS, EngineName, WritingConfig, best_engine, require_engine
from rayprivacy.models.settings import AUTO
from rayprivacy.runs.files import read_mapping
from rayprivacy.runs.recipe import LOCAL, Recipe

R = TypeVar("R", bound=Recipe)


def decided(recipe: R, stored: Mapping[str, Any] | None) -> R:
    """The same recipe with nothing left to the machines; `stored` are the keys that the run began with, if it did."""
    return with_engine(_with_format(recipe, stored), stored)


def with_engine(recipe: R, stored: Mapping[str, Any] | None) -> R:
    """The same recipe with its sampling engine decided."""
    if not isinstance(recipe.generation, WritingConfig):
        return recipe
    engine = recipe.generation.engine
    if engine == AUTO:
        engine = (stored or {}).get("generation", {}).get("engine") or best_engine_for(recipe.model.base)
    require_engine("generation.engine", engine)
    return recipe.model_copy(update={"generation": recipe.generation.model_copy(update={"engine": engine})})


def best_engine_for(base: str) -> EngineName:
    """The fastest engine that is installed and takes a base model."""
    from transformers import AutoConfig  # torch comes with it, and commands that open no run stay quick

    from rayprivacy.models.sources import resolve_base

    try:
        return best_engine(AutoConfig.from_pretrained(resolve_base(base), trust_remote_code=False))
    except Exception:  # noqa: BLE001 - whatever it is
        return TRANSFORMERS  # loading the model will say what is wrong with it


def _with_format(recipe: R, stored: Mapping[str, Any] | None) -> R:
    if recipe.model.dtype != AUTO:
        return recipe
    dtype = (stored or {}).get("model", {}).get("dtype") or format_of(recipe.resources.address)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": dtype})})


def decisions(base: Mapping[str, Any], begun: Path) -> Json:
    """The keys that are decided for every trial of a search; `begun` is the file of what this gave when it began."""
    dtype = base.get("model", {}).get("dtype", AUTO)
    if dtype == AUTO and begun.exists():
        return read_mapping(begun, "recipe")
    address = base.get("resources", {}).get("address", LOCAL)
    return {"model": {"dtype": format_of(address) if dtype == AUTO else dtype}}


def format_of(address: str) -> str:
    """The number format for a run: bfloat16 where every node computes fast in it."""
    from rayprivacy.models.backbone import fast_format  # imports torch

    return fast_format() if address == LOCAL else _format_of_nodes(address)


def _format_of_nodes(address: str) -> str:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from rayprivacy.models.backbone import fast_format
    from rayprivacy.runs.session import ray_session

    measure: Any = ray.remote(num_cpus=0)(fast_format)
    with ray_session(address):
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        places = [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
        try:
            found = ray.get([measure.options(scheduling_strategy=place).remote() for place in places])
        except RayError as error:
            raise ClusterError(
                f"model.dtype is '{AUTO}' and a node of {address} could not be asked what it computes fast in"
                f" ({type(error).__name__}): check that rayprivacy is installed there, or set model.dtype."
            ) from None
    return "bfloat16" if set(found) == {"bfloat16"} else "float32"
