"""The driver: runs one recipe of any method, from the account to the certificate and the measurements.

It alone checks a recipe, decides what that leaves to the machines, plans, looks at the account, and tries the base
model, once each and in this order; the account is opened when the first charge is about to be made. So a run that is
refused before its work began leaves no directory, ledger or account behind.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import pyarrow.parquet as pq
from rich.console import Console

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import SHARED, Json, write_atomic, write_json
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.core.storage import Mirror
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.ledger.certificate import build_certificate, to_markdown
from rayprivacy.ledger.store import Ledger
from rayprivacy.runs import account, calibration, checks, decide, estimate, figures, measure, session, source
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import CERTIFICATE, METRICS, R, Run, attempt, calibrated, stored_recipe
from rayprivacy.runs.method import Method, Output, exhibits_json
from rayprivacy.runs.plan import EVALUATION, Plan, epsilon_of
from rayprivacy.runs.progress import ProgressGauges, progress_gauges, totals

if TYPE_CHECKING:
    from ray.data import Dataset

TOGETHER = "all stages together"
MEASURED = 100_000  # texts that are in memory for their figures; public, whatever was written
_UNMEASURED = {"releasable": False, "why": "nothing was measured on held-out users"}
PACKAGES = ("rayprivacy", "ray", "torch", "transformers", "opendp")


def certificate_of(context: RunContext[Any], shown: Json | None = None) -> Json:
    """The certificate of a run whose release is committed, as JSON values, with its released figures."""
    recipe, plan = context.recipe, context.plan
    _, rule = context.ledger.terms(recipe.privacy.account)
    stages = [{"name": name, "epsilon": epsilon} for name, epsilon in plan.epsilons(rule).items()]
    return build_certificate(
        context.ledger,
        recipe.privacy.account,
        recipe.release_id,
        corpus_digest=context.corpus.corpus_digest(context.key),
        run_request=recipe.privacy.budget,
        assumptions=(*plan.assumptions, *dict.fromkeys(context.tried.values()), *context.public_inputs),
        test_key=context.key.is_test_key,
        versions={name: version(name) for name in PACKAGES} | context.model_version | context.corpus_version,
        stages=[*stages, {"name": TOGETHER, "epsilon": epsilon_of(rule, plan.charges)}],
        figures={**plan.figures, **figures.named(shown or {})},
        warnings=plan.warnings,
        as_published=plan.as_published,
        audit=recipe.audit.canaries.model_dump(mode="json") if recipe.audit else None,
    )


def write_certificate(context: RunContext[Any], shown: Json | None = None) -> Json:
    """Write `certificate.json` and `certificate.md` of a run whose release is committed; returns the JSON values."""
    certificate, root = certificate_of(context, shown), context.run.root
    context.make_way()
    write_atomic(root / CERTIFICATE, (json.dumps(certificate, indent=2) + "\n").encode(), SHARED)
    write_atomic(root / "certificate.md", to_markdown(certificate).encode(), SHARED)
    return certificate


class Driven(NamedTuple, Generic[R]):
    """A run after `drive`, and its certificate as JSON values: empty for a run that was stopped half-way."""

    run: Run[R]
    certificate: Json


def drive(
    method: Method,
    recipe: R,
    root: Path,
    *,
    resume: bool = True,
    until: int | None = None,
    dataset: "Dataset | None" = None,
    console: Console | None = None,
    measured: bool = True,
    announce: bool = True,
    mirror: Mirror | None = None,
) -> Driven[R]:
    """Run, or finish, one recipe in the run directory `root`, which for a run at a URI is the folder of its mirror.

    With `until`, the run stops after these chunks and saves the model alone. `measured` figures, on private text, are
    internal; `announce` says whether the console hears that the account is new.
    """
    opened: list[Ledger] = []
    with ExitStack() as held:
        held.enter_context(attempt(root, lambda: bool(opened)))
        if mirror is not None:
            _pull(mirror, resume)
        begun, noise = stored_recipe(root), calibrated(root)
        found = decide.decided(recipe, begun)
        run = Run.find(root, found, resume=resume, console=console, measured=measured, mirror=mirror)
        with calibration.of_run(noise):
            plan = method.planned(run.recipe)
        checks.check_recipe(method, run.recipe, plan, measured=measured)
        source.look(run)
        account.look(run.recipe, plan, run.ledger_head(), begun=begun is not None)
        with run.console.status("trying the base model"):
            base = None if account.was_charged(run) else method.try_base(run.recipe)
        key = load_or_create_key(Path(run.recipe.privacy.key).absolute())
        run.begin(noise)

        def open_ledger() -> Ledger:
            opened.append(held.enter_context(account.open_account(run.recipe, plan, run.ledger_head())))
            if opened[0].news and announce:
                run.console.print(opened[0].news, highlight=False, markup=False, soft_wrap=True)
            service.enter_context(session.ledger_service(run.recipe.privacy, not run.console.quiet))
            return opened[0]

        with _session(run, plan) as progress, ExitStack() as service:
            source.settle_source(run, dataset)
            context = RunContext(run, plan, open_ledger, key, progress, until, base)
            output = method.execute(context)
            shown = _figures(context, method, output) if measured else {}
        context.keep_ledger_head()
        if output is None or context.stops_early:
            return Driven(run, {})
        certificate = write_certificate(context, shown)
        if measured:
            _measure(run, method, output, shown)
            measure.compare_with_private(run, method.card, context.base, output.codes)
            estimate.keep_seconds(run, plan)
        return Driven(run, certificate)


def _pull(mirror: Mirror, resume: bool) -> None:
    if not resume and mirror.holds_run():
        raise ConfigError(f"{mirror.uri} holds a run already: add --resume to finish it, or choose another --out.")
    mirror.pull()


@contextmanager
def _session(run: Run[R], plan: Plan) -> Iterator[ProgressGauges]:
    """Ray, and the counts of one run; a quiet run shows no gauges."""
    recipe, shown = run.recipe, not run.console.quiet
    gauges = progress_gauges(recipe.release_id, totals(plan), shown, run.meter.count)
    with session.ray_session(recipe.resources.address), gauges as progress:
        yield progress


def _figures(context: RunContext[Any], method: Method, output: Output | None) -> Json:
    """The figures that may be published; none of a run that stops half-way, whose model is not the release yet."""
    if output is None or context.stops_early:
        return {}
    return figures.figures_of(context, method, output)


def _measure(run: Run[R], method: Method, output: Output, shown: Json) -> None:
    with run.stage(EVALUATION):
        heldout = output.heldout() if output.heldout else _UNMEASURED
        internal, exhibits = output.internal(), exhibits_json(output.exhibits())
    synthetic = {"synthetic": _of_text(run.root / method.card.texts, output)} if method.card.texts else {}
    metrics = {"schema_version": 1, **synthetic, "heldout": dict(heldout), "timings_s": run.timings()}
    metrics |= {"figures": shown} if shown else {}
    write_json(run.root / METRICS, {**metrics, **internal, "exhibits": exhibits})


def _of_text(path: Path, output: Output) -> Json:
    """The free figures of the released text; of more than MEASURED texts those of a sample, whose size is named."""
    texts = [str(text) for text in measure.drawn_rows([path], MEASURED, ["text"])["text"].to_pylist()]
    count = pq.read_metadata(path).num_rows
    counts = {"texts": count, "texts_measured": len(texts)} if count > len(texts) else {}
    return {"releasable": True, **synthetic_metrics(texts), **counts, **output.figures}
