"""A recipe run elsewhere: on another corpus, with a ledger, a key and caches of its own.

Shadow models of an audit and trials on public text are such runs. Nothing of the private side may be left in the copy:
neither the corpus nor a path to a cache that was made from it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayprivacy.core.paths import PathKind, path_keys
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.runs.recipe import Recipe


def elsewhere(
    data: Mapping[str, Any], kind: type[Recipe], corpus: CorpusConfig, *, ledger: Path, key: Path, account: str
) -> dict[str, Any]:
    """The keys of a recipe that is run elsewhere.

    The block of the corpus is replaced, private paths are forgotten, and the audit is left out.
    """
    copy = {name: dict(block) if isinstance(block, Mapping) else block for name, block in data.items()}
    copy.pop("audit", None)
    for path in path_keys(kind, PathKind.PRIVATE):
        _forget(copy, path.split("."))
    copy["corpus"] = corpus.model_dump(mode="json")
    shared = {name: value for name, value in copy.get("privacy", {}).items() if name != "corpus"}  # of other accounts
    copy["privacy"] = shared | {
        "ledger": f"sqlite:///{ledger}",
        "key": str(key),
        "account": account,
    }
    return copy


def _forget(data: dict[str, Any], path: list[str]) -> None:
    """Take a key out, so that its default holds; blocks on the way are copied first."""
    *blocks, name = path
    for block in blocks:
        inner = data.get(block)
        if not isinstance(inner, Mapping):
            return
        data[block] = dict(inner)
        data = data[block]
    data.pop(name, None)
