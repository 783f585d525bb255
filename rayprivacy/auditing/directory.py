"""Audit a finished run from its directory: membership, verbatim overlap, canaries; against its certificate.

Everything here reads private text and models of the auditor's own machine; the figures are internal (`releasable:
false`), hold no text, and go to `audit.json`. An audit can show a leak. It cannot show that there is none: the attacks
are cheap, one run is one draw of the noise, and users of one run are not independent trials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from rayprivacy.auditing.bounds import CONFIDENCE, Profile, compare
from rayprivacy.auditing.canaries import canary_figures, least_chance, planted_users, read_plan
from rayprivacy.auditing.claim import Claim, read_claim
from rayprivacy.auditing.extraction import WORDS, Overlap
from rayprivacy.auditing.membership import Point, auc, auc_interval, calibrated, operating_points, plain
from rayprivacy.auditing.population import AuditedUnit, Population
from rayprivacy.auditing.scoring import (
    ModelLoss,
    Read,
    Scored,
    ScoredModel,
    Shadow,
    inside_of,
    joint_losses,
    shadow_scores,
)
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import write_json
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Seal
from rayprivacy.core.units import AccountKind, Budget, PrivacyUnit
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig

Array = npt.NDArray[np.float64]
Scores = tuple[Array, Array]  # of members and of others

_SEAL = Seal(RayPrivacyError, "report it, with the sizes of the corpus and the settings")  # errors may quote rows
_WHY = "measured on private text of training users and of held-out users"
NOTES = {
    "membership": "Users who were trained on against users held out by a coin. Cheap attacks: a low figure proves"
    " nothing, and users of one run are not independent trials, so the interval is indicative.",
    "overlap": "Common phrases are shared by everybody: compare training users with as many held-out ones. Repeated"
    " words are no breach by themselves, and paraphrased facts are not seen.",
    "canaries": "Exposure and rank are no bounds on epsilon. Only a secret of a single user is protected by the"
    " certificate's epsilon; what many users share may be learnt.",
    "admitted": "The greatest rate of hits that the certificate's pair, or the whole curve of this release's events,"
    " admits at the upper end (95%) of the rate of false alarms that was measured.",
}
_NO_BOUND = "A selective claim does not bound membership, so the figures are measurements, and compared with nothing."


@dataclass(frozen=True)
class RunAudit:
    """What is audited: `users` members and others at most, `records` texts of each, `candidates` of a kind of canary,
    sought in the first released model; a row's loss sums over all models. `texts` names the released text, if any.
    """

    root: Path
    base: ModelConfig
    unit: PrivacyUnit
    models: Sequence[ScoredModel]
    key: Key
    users: int = 400
    records: int = 4
    candidates: int = 1000
    shadows: Sequence[Shadow] = ()
    texts: str = "synthetic.parquet"

    def population(self) -> Population:
        """The run's users, canaries left out."""
        hidden = planted_users(read_plan(self.root, self.key), self.key)
        return Population(self.root / "private" / "shards", self.unit, self.key, hidden)

    def check(self) -> None:
        """Refuse a run that `audit_run` would refuse, before shadow models are trained for it."""
        read_claim(self.root)
        _synthetic(self)
        self.population().check()


@_SEAL.around("the audit")
def audit_run(audit: RunAudit, told: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Attack the run, write `audit.json` into it, and return what it says; `told` takes what begins."""
    claim = read_claim(audit.root)
    synthetic = _synthetic(audit)
    plan = read_plan(audit.root, audit.key)
    population = audit.population()
    population.check()
    members = population.members(audit.users, audit.records)
    others = population.others(audit.users, audit.records)
    if not (members and others):
        raise ConfigError(
            "the shards hold no training users, or no held-out ones, besides canaries: audit a larger run."
        )
    told(f"what the models lose on {len(members)} training and {len(others)} held-out {claim.unit}s")
    released = _tuned(audit, audit.root)
    attacks = _scores(audit, released, members, others)
    planted = []
    if plan:
        told("canaries")
        scorer = _of_secrets(audit, released[0])
        planted = canary_figures(scorer, plan, population, synthetic, claim.strictest, audit.candidates)
    told("words that synthetic and private texts share")
    body = {
        "schema_version": 1,
        "releasable": False,
        "why": _WHY,
        "claim": {"kind": claim.kind.value, **_pair(claim.budget), "unit": claim.unit},
        "bound": {**_pair(claim.bound), "account": claim.central or None} if claim.bound else None,
        "sample": {"members": len(members), "others": len(others)}
        | {"records_at_most": audit.records, "shadows": len(audit.shadows)},
        "membership": {name: _membership(claim, *scores) for name, scores in attacks.items()},
        "overlap": _overlap(synthetic, population, members, others) if audit.texts else None,
        "canaries": planted,
        "verdict": _verdict(claim, attacks, planted),
        "notes": {name: note for name, note in _notes(claim).items() if planted or name != "canaries"},
    }
    write_json(audit.root / "audit.json", body)
    return body


def _synthetic(audit: RunAudit) -> list[str]:
    if audit.unit is PrivacyUnit.PHRASE:
        raise ConfigError("privacy.unit is 'phrase': no user is in or out, so there is no membership to infer.")
    for name in filter(None, ("model", audit.texts)):
        if not (audit.root / name).exists():
            raise ConfigError(f"{audit.root} has no {name}: finish the run with `rayprivacy run --resume`.")
    if not audit.texts:
        return []
    return [str(text) for text in pq.read_table(audit.root / audit.texts)["text"].to_pylist()]


def _of_secrets(audit: RunAudit, released: Backbone) -> ModelLoss:
    """The loss of the model that writes text on canaries, which have no labels and are read as the run read them."""
    main = audit.models[0]
    assert isinstance(main, Scored), "canaries are planted for language models alone"
    return ModelLoss(released, main.max_tokens, prefix=main.prefix({}))


def _scores(
    audit: RunAudit, released: Sequence[Backbone], members: Sequence[AuditedUnit], others: Sequence[AuditedUnit]
) -> dict[str, Scores]:
    """Scores of members and of others, by attack; a unit's loss is the mean over its texts."""
    units = [*members, *others]
    size = len(members)
    own = _read(audit, released, units)
    public = _read(audit, [load_backbone(audit.base)] * len(audit.models), units).losses
    scores = {"loss": plain(own.losses), "calibrated": calibrated(own.losses, public)}
    if audit.shadows:
        shadows = [_read(audit, _tuned(audit, shadow.root), units) for shadow in audit.shadows]
        scores |= shadow_scores(own, public, shadows, inside_of(audit.shadows, [unit.user for unit in units]))
    return {name: (values[:size], values[size:]) for name, values in scores.items()}


def _tuned(audit: RunAudit, root: Path) -> list[Backbone]:
    """The models of a run that were trained from the base."""
    bases = [audit.base.model_copy(update={"base": str(root / each.folder)}) for each in audit.models]
    return [load_backbone(base, released=True) for base in bases]


def _read(audit: RunAudit, models: Sequence[Backbone], units: Sequence[AuditedUnit]) -> Read:
    """What models say of units, in the mean over the rows of each."""
    rows = [row for unit in units for row in unit.rows]
    ends = np.cumsum([len(unit.rows) for unit in units])[:-1]
    figures = joint_losses(audit.models, models, rows)[:, None]
    certain = [each.certainty(model, rows) for each, model in zip(audit.models, models, strict=True)]
    whole = np.concatenate([figures, *certain], axis=1)
    means = np.array([each.mean(axis=0) for each in np.split(whole, ends)])
    return Read(means[:, 0], means[:, 1:])


def _membership(claim: Claim, members: Array, others: Array) -> dict[str, object]:
    points = [
        {
            "false_alarm_rate": point.rate,
            "hit_rate": round(point.hit_rate, 4),
            "interval": _rounded(point.interval),
            "admitted_by_claim": _admitted(point, claim.cap),
            "admitted_by_events": _admitted(point, claim.events),
        }
        for point in operating_points(members, others)
    ]
    interval = _rounded(auc_interval(members, others))
    return {"auc": round(auc(members, others), 4), "auc_interval": interval, "points": points}


def _admitted(point: Point, profile: Profile | None) -> float | None:
    return round(point.admitted(profile), 4) if profile else None


def _overlap(
    synthetic: Sequence[str], population: Population, members: Sequence[AuditedUnit], others: Sequence[AuditedUnit]
) -> dict[str, object]:
    overlap, same = Overlap(synthetic), members[: len(others)]
    sides = {
        "training": population.training_texts(),
        "training_as_many_users": _texts(same),
        "heldout": _texts(others[: len(same)]),
    }
    shares = {name: round(len(overlap.shared_with(texts)) / max(1, len(synthetic)), 4) for name, texts in sides.items()}
    return {"words": WORDS, "synthetic_texts": len(synthetic), "long_enough": overlap.long_enough, **shares}


def _texts(units: Sequence[AuditedUnit]) -> list[str]:
    return [str(row["text"]) for unit in units for row in unit.rows]


def _verdict(claim: Claim, attacks: Mapping[str, Scores], secrets: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Both kinds of evidence share the error: half for membership, half for canaries."""
    if claim.bound is None or claim.strictest is None:
        return {"flagged": False, "sentence": f"No verdict. {_NO_BOUND}", "confidence": None}
    confidence = 1 - (1 - CONFIDENCE) / 2
    counts = [point.counts for scores in attacks.values() for point in operating_points(*scores)]
    by_membership = compare(claim.strictest, counts, confidence).flagged
    chance = least_chance(secrets)
    by_canaries = chance is not None and chance < 1 - confidence
    of = f" of account '{claim.central}'" if claim.central else ""
    what = f"what epsilon {claim.bound.epsilon:g} at delta {claim.bound.delta:g}{of} admits"
    if by_membership or by_canaries:
        which = " and ".join(name for name, hit in (("membership", by_membership), ("canaries", by_canaries)) if hit)
        sentence = (
            f"FLAGGED by {which}: an attack does better than {what}. Treat the release as leaking until explained."
        )
    else:
        sentence = f"Not flagged: no attack did better than {what}. That is no proof: stronger attacks exist."
    return {"flagged": by_membership or by_canaries, "sentence": sentence, "confidence": CONFIDENCE}


def _notes(claim: Claim) -> dict[str, str]:
    """What the figures cannot show; of a selective claim, what they are compared with, if with anything."""
    if claim.kind is not AccountKind.SELECTIVE:
        return NOTES
    canaries = "Exposure and rank are no bounds on epsilon, and a secret that the policy does not find "
    if claim.bound is None:
        kept = {name: note for name, note in NOTES.items() if name != "admitted"}
        return kept | {"canaries": f"{canaries}is not protected.", "claim": _NO_BOUND}
    return NOTES | {
        "canaries": f"{canaries}is protected by the epsilon of account '{claim.central}' alone, if one user has it.",
        "admitted": f"The greatest rate of hits that the pair of account '{claim.central}' admits at the upper end"
        " (95%) of the rate of false alarms that was measured.",
        "claim": "A selective claim does not bound membership, so figures are compared with the pair of account"
        f" '{claim.central}', which pays for all steps.",
    }


def _pair(budget: Budget) -> dict[str, float]:
    return {"epsilon": budget.epsilon, "delta": budget.delta}


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in interval]
