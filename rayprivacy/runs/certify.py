"""Write the certificate of a finished run, for machines and for people."""

import json
from importlib.metadata import version
from typing import Any

from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.ledger.certificate import build_certificate
from rayprivacy.ledger.certificate_text import to_markdown
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import CERTIFICATE
from rayprivacy.runs.plan import epsilon_of

TOGETHER = "all stages together"
PACKAGES = ("rayprivacy", "ray", "torch", "transformers", "opendp")


def write_certificate(context: RunContext[Any]) -> dict[str, Any]:
    """Write `certificate.json` and `certificate.md` of a run whose release is committed; returns the JSON values.

    Each charged stage is a line with the epsilon that the plan predicts for it alone; the last line is all of them
    together, by the account's rule.
    """
    run, recipe, plan = context.run, context.run.recipe, context.plan
    certificate = build_certificate(
        context.ledger,
        recipe.privacy.account,
        recipe.release_id,
        corpus_digest=context.corpus.corpus_digest(context.key),
        run_request=recipe.privacy.budget,
        assumptions=(*plan.assumptions, *dict.fromkeys(context.tried.values()), *context.public_inputs),
        test_key=context.key.is_test_key,
        versions={name: version(name) for name in PACKAGES} | context.model_version,
        stages=_stages(context),
        figures=plan.figures,
        warnings=plan.warnings,
        as_published=plan.as_published,
        audit=recipe.audit.canaries.model_dump(mode="json") if recipe.audit else None,
    )
    context.make_way()
    write_atomic(run.root / CERTIFICATE, (json.dumps(certificate, indent=2) + "\n").encode(), SHARED)
    write_atomic(run.root / "certificate.md", to_markdown(certificate).encode(), SHARED)
    return certificate


def _stages(context: RunContext[Any]) -> list[dict[str, Any]]:
    plan = context.plan
    _, rule = context.ledger.terms(context.recipe.privacy.account)
    lines = [{"name": name, "epsilon": epsilon} for name, epsilon in plan.epsilons(rule).items()]
    return [*lines, {"name": TOGETHER, "epsilon": epsilon_of(rule, plan.charges)}]
