"""Checks of a recipe that cost nothing, made before there is even an account."""

import os
from pathlib import PurePosixPath

from pyarrow import fs

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.uris import shown
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import CHITCHAT, check_source, filesystem_of, locate
from rayprivacy.corpus.tables import Table, table_of
from rayprivacy.evaluation.settings import require_extra
from rayprivacy.evaluation.texts import LEAST_TEXTS
from rayprivacy.models.sources import sentence_weights
from rayprivacy.runs.method import Method
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import OF_A_RUN, Recipe

DATASET = "dataset"  # a corpus that is handed over
_BESIDE = ("private", "manifest.json")  # a recipe or a space, in a folder or in a store


def check_recipe(method: Method, recipe: Recipe, plan: Plan, *, measured: bool = True) -> None:
    """Refuse what would fail after something was spent; `measured` runs may be compared with private text."""
    method.check_inputs(recipe)
    plan.check(recipe)
    if measured and recipe.figures and recipe.corpus.holdout == 0:
        raise ConfigError("corpus.holdout is 0, and 'figures' are measured on held-out users: set e.g. 0.1.")
    if recipe.audit and not method.card.has_model:
        raise ConfigError(
            f"'audit' is set and method '{recipe.method}' releases no model whose losses could be attacked: remove it."
        )
    if recipe.audit and not method.card.has_language_model:
        raise ConfigError(
            f"'audit' is set and method '{recipe.method}' releases a tagger, in whose losses no secret could be looked"
            " for: remove it, and attack the finished run with `rayprivacy audit`."
        )
    if recipe.evaluation.compare and not method.card.texts:
        raise ConfigError(
            f"evaluation.compare is {recipe.evaluation.compare} and method '{recipe.method}' releases no text: set it"
            " to 0."
        )
    if measured and recipe.evaluation.compare:
        check_comparison(recipe)


def check_files(recipe: Recipe) -> None:
    """Refuse a corpus of files that is not there, or lacks a column."""
    corpus = recipe.sharded_corpus
    if corpus.source != DATASET and table_behind(corpus) is None:
        check_source(corpus)


def table_behind(corpus: CorpusConfig) -> Table | None:
    """The table that a recipe names as its corpus, if it names one."""
    return None if corpus.source in (DATASET, CHITCHAT) else table_of(corpus.source)


def check_comparison(recipe: Recipe) -> None:
    """Refuse a comparison that cannot be made."""
    require_extra("evaluation.compare")
    sentence_weights()
    if recipe.generation is not None and recipe.generation.texts < LEAST_TEXTS:
        raise ConfigError(
            f"generation.texts is {recipe.generation.texts}, and evaluation.compare needs at least {LEAST_TEXTS}: raise"
            " it, or set evaluation.compare to 0."
        )


def require_no_run(corpus: CorpusConfig) -> None:
    """Refuse a public source of which a file lies in a run directory, whatever links lead there."""
    if corpus.source == CHITCHAT:
        return
    filesystem, path = filesystem_of(corpus.source)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    files = (os.path.realpath(file) if is_local else file for file in (path, *locate(corpus).paths))
    folders = {str(folder) for file in files for folder in (PurePosixPath(file), *PurePosixPath(file).parents)}

    def has(folder: str, *names: str) -> bool:
        found = filesystem.get_file_info([f"{folder}/{name}" for name in names])
        return any(info.type != fs.FileType.NotFound for info in found)

    if any(has(each, "certificate.json") or (has(each, *OF_A_RUN) and has(each, *_BESIDE)) for each in folders):
        raise ConfigError(
            f"corpus.source is '{shown(corpus.source)}', which lies in a run directory or holds one, and what a run"
            " writes comes of private text: name text that was public before, or ask about what a"
            " finished run released with `rayprivacy questions RUN_DIR`."
        )
