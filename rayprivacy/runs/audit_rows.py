"""The canaries of an audit run, on their way into its corpus."""

from typing import Any

import pyarrow as pa

from rayprivacy.auditing.canaries import PLAN_FILE, canary_rows, record_plan
from rayprivacy.core.keys import Key
from rayprivacy.runs.directory import Run


def planted_rows(run: Run[Any], key: Key) -> pa.Table:
    """Rows of user and text that an audit run adds to its corpus, after their plan was written down."""
    assert run.recipe.audit is not None
    run.private(PLAN_FILE)  # `clean` deletes the plan too
    record_plan(run.root, run.recipe.audit.canaries, key)
    return canary_rows(run.recipe.audit.canaries, key)
