"""The canaries of an audit run, on their way into its corpus."""

from typing import Any

import pyarrow as pa

from rayprivacy.audit.canaries import canary_rows, record_plan
from rayprivacy.core.keys import Key
from rayprivacy.methods.run import Run


def planted_rows(run: Run[Any], key: Key) -> pa.Table | None:
    """Rows of user and text that an audit run adds to its corpus, after noting their plan; None for any other run."""
    if run.recipe.audit is None:
        return None
    record_plan(run.root, run.recipe.audit.canaries, key)
    return canary_rows(run.recipe.audit.canaries, key)
