"""The start of a search: the space is read, what cannot work is refused, and its rule of charging takes over."""

import json
import random
from pathlib import Path

import yaml
from rich.console import Console

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import private_directory, read_json, write_atomic, write_json
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.checks import tags_alone
from rayprivacy.runs.decide import decisions
from rayprivacy.runs.files import Overrides
from rayprivacy.tuning.outcome import Outcome
from rayprivacy.tuning.search import run_search
from rayprivacy.tuning.selection import run_selection
from rayprivacy.tuning.space import load_space, read_sentences
from rayprivacy.tuning.trials import DECIDED, SPACE, Trials, Values

_TRIED = 200


def start_search(
    path: Path, overrides: Overrides, out: Path, *, resume: bool, console: Console
) -> Outcome | Path | None:
    """Run the search of a space file in the folder `out`, or go on with it; trials of a selection are not printed.

    Returns what was found; for a selection the winner's folder, or None when the number of trials came out as 0.
    """
    space = load_space(path, overrides)
    if space.metric.text is not None:
        read_sentences(space.metric)
    trials = Trials.of(space, out.absolute())
    example = feasible(trials)
    _check_method(trials, example)
    _check_pruning(trials, example)
    _open_folder(trials, resume)  # last: a space with a password in it is refused before it is written
    if space.charging == "select":
        return run_selection(trials, console)
    return run_search(trials, example, console)


def feasible(trials: Trials) -> Values:
    """Some values of the space that can be run; raises the ConfigError of the last ones if none were found."""
    dice, reason = random.Random(0), ""
    for _ in range(_TRIED):
        values = {key: domain.draw(dice) for key, domain in trials.space.search.items()}
        try:
            trials.charges(values)
        except ConfigError as error:
            reason = str(error)
        else:
            return values
    raise ConfigError(reason)


def _check_method(trials: Trials, example: Values) -> None:
    recipe = trials.recipe(example)
    card = method_of(recipe).card
    if card.has_model and not card.has_language_model:
        raise ConfigError(f"{tags_alone(recipe.method)}: give values of your own, or choose them on public text.")


def _check_pruning(trials: Trials, example: Values) -> None:
    if trials.space.pruning is None:
        return
    recipe = trials.recipe(example)
    if not trials.plan(example).chunks:
        raise ConfigError(f"pruning is set and method '{recipe.method}' cannot be stopped half-way: remove pruning.")
    if not trials.space.metric.of_model:
        raise ConfigError(
            f"pruning is set and metric.name is '{trials.space.metric.name}', which needs synthetic text:"
            " use public_perplexity, or remove pruning."
        )


def _open_folder(trials: Trials, resume: bool) -> None:
    root, shape = trials.root, json.loads(trials.space.model_dump_json(exclude={"trials", "concurrent"}))
    stored = root / SPACE
    if stored.exists():
        if not resume:
            raise ConfigError(f"{root} holds a search already: add --resume to go on, or choose another --out.")
        if read_json(stored) != shape:
            raise ConfigError(
                f"{root} holds a search of another space: resume it with its own, or choose another --out."
            )
    private_directory(root)
    write_atomic(root / DECIDED, yaml.safe_dump(decisions(trials.base, root / DECIDED)).encode())
    write_json(stored, shape)
