"""Private text into something that can be shared, with a differential-privacy guarantee kept in one ledger.

    import rayprivacy as rp

    recipe = rp.load_recipe("recipe.yaml", {"privacy.account": "my-chats"})
    print(rp.plan(recipe))                      # stages, charges, epsilon by stage; touches no data
    result = rp.run(recipe, out="runs/mine")
    result.certificate.epsilon, result.texts(), result.model()

What stands here is imported when it is first used: the package itself takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rayprivacy.core.console import share_cores

if TYPE_CHECKING:
    from rayprivacy.api import (
        Result,
        ask_questions,
        audit,
        clean,
        evaluate,
        evidence,
        load_recipe,
        method_names,
        plan,
        profile,
        report,
        run,
        tune,
    )
    from rayprivacy.core.errors import (
        BudgetRefusedError,
        ClusterError,
        ConfigError,
        CorpusError,
        EventError,
        KeyFileError,
        LeaseHeldError,
        LedgerError,
        RayPrivacyError,
        ReleaseError,
        ShardError,
        StorageError,
    )
    from rayprivacy.ledger.certificate import Certificate
    from rayprivacy.ledger.store import Ledger
    from rayprivacy.methods.edp_sgd.reading import Tagger
    from rayprivacy.questions.answers import score_answers
    from rayprivacy.questions.judge import Judge
    from rayprivacy.questions.retriever import Retriever
    from rayprivacy.runs.recipe import Recipe
    from rayprivacy.trainer.trainer import DPTorchTrainer
    from rayprivacy.tuning.budgeted import BudgetedSearcher, trial_release

__version__ = "0.6.0"

share_cores()  # before anything imports torch

# Where names are that are neither in `api` nor, as errors, in `core.errors`.
_HOMES = {
    "Certificate": "rayprivacy.ledger.certificate",
    "Ledger": "rayprivacy.ledger.store",
    "Tagger": "rayprivacy.methods.edp_sgd.reading",
    "Judge": "rayprivacy.questions.judge",
    "Retriever": "rayprivacy.questions.retriever",
    "score_answers": "rayprivacy.questions.answers",
    "Recipe": "rayprivacy.runs.recipe",
    "BudgetedSearcher": "rayprivacy.tuning.budgeted",
    "trial_release": "rayprivacy.tuning.budgeted",
    "DPTorchTrainer": "rayprivacy.trainer.trainer",
}

__all__ = [
    "BudgetRefusedError",
    "BudgetedSearcher",
    "Certificate",
    "ClusterError",
    "ConfigError",
    "CorpusError",
    "DPTorchTrainer",
    "EventError",
    "Judge",
    "KeyFileError",
    "LeaseHeldError",
    "Ledger",
    "LedgerError",
    "RayPrivacyError",
    "Recipe",
    "ReleaseError",
    "Result",
    "Retriever",
    "ShardError",
    "StorageError",
    "Tagger",
    "__version__",
    "ask_questions",
    "audit",
    "clean",
    "evaluate",
    "evidence",
    "load_recipe",
    "method_names",
    "plan",
    "profile",
    "report",
    "run",
    "score_answers",
    "trial_release",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rayprivacy' has no attribute '{name}'")
    home = _HOMES.get(name, f"rayprivacy.{'core.errors' if name.endswith('Error') else 'api'}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
