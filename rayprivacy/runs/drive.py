"""The driver: runs one recipe of any method, from the account to the certificate and the measurements."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rayprivacy.core.files import write_json
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.runs.account import open_account
from rayprivacy.runs.certify import write_certificate
from rayprivacy.runs.checks import check_recipe
from rayprivacy.runs.comparison import compare_with_private
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import METRICS, R, Run
from rayprivacy.runs.drawn import drawn_rows
from rayprivacy.runs.estimate import keep_seconds
from rayprivacy.runs.exhibits import exhibits_json
from rayprivacy.runs.method import Method, Output
from rayprivacy.runs.plan import EVALUATION
from rayprivacy.runs.session import run_session

MEASURED = 100_000  # texts that are in memory for their figures; public, whatever was written
_UNMEASURED = {"releasable": False, "why": "nothing was measured on held-out users"}


def drive(method: Method, run: Run[R], until: int | None = None) -> dict[str, Any]:
    """Run, or finish, one recipe.

    Args:
        method: of the recipe.
        run: the run.
        until: chunks after which to stop and to save the model alone; all when left out.

    Returns:
        The certificate as JSON values; empty for a run that was stopped.

    Raises:
        BudgetRefusedError: the account has less left than the run asks for; what was charged before stays charged.
        RayPrivacyError: whatever else stopped the run, without private text.
    """
    recipe, plan = run.recipe, method.planned(run.recipe)
    check_recipe(method, recipe, measured=run.measured)
    with closing(open_account(recipe, plan, run.ledger_head())) as ledger:
        key = load_or_create_key(Path(recipe.privacy.key).absolute())
        with run_session(run, plan) as progress:
            context = RunContext(run, plan, ledger, key, progress, until)
            output = method.execute(context)
        context.keep_ledger_head()
        if output is None or context.stops_early:
            return {}
        certificate = write_certificate(context)
    if run.measured:
        _measure(run, method, output)
        compare_with_private(run, method.card, context.base, output.codes)
        keep_seconds(run, plan)
    return certificate


def _measure(run: Run[R], method: Method, output: Output) -> None:
    """Write metrics.json: figures of the released text, if there is any, which are free, and internal ones."""
    with run.stage(EVALUATION):
        heldout = output.heldout() if output.heldout else _UNMEASURED
        internal, exhibits = output.internal(), exhibits_json(output.exhibits())
    synthetic = {"synthetic": _of_text(run.root / method.card.texts, output)} if method.card.texts else {}
    metrics = {"schema_version": 1, **synthetic, "heldout": dict(heldout), "timings_s": run.timings()}
    write_json(run.root / METRICS, {**metrics, **internal, "exhibits": exhibits})


def _of_text(path: Path, output: Output) -> dict[str, Any]:
    """The free figures of the released text; of more than MEASURED texts those of a sample, whose size is named."""
    texts = [str(text) for text in drawn_rows([path], MEASURED, ["text"])["text"].to_pylist()]
    count = pq.read_metadata(path).num_rows
    counts = {"texts": count, "texts_measured": len(texts)} if count > len(texts) else {}
    return {"releasable": True, **synthetic_metrics(texts), **counts, **output.figures}
