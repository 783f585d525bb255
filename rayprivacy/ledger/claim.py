"""What a certificate claims, in sentences: whatever is written about a release takes them from here.

The claim is the account's cap, never what was spent so far. While a warning stands nothing is claimed, and what the
certificate would read is marked so.
"""

from typing import NamedTuple

from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.certificate import Certificate, Request, Spent, caveats, meaning_of, unit_of

NO_MEANING = 50.0
DISTRUST = "Warning: do not rely on a guarantee from this run"


class Statement(NamedTuple):
    """What is protected; where a warning stands, why nothing is, and what the claim would read."""

    headline: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def statement(certificate: Certificate) -> Statement:
    """The statement of protection of a release."""
    c, reasons = certificate, tuple(warnings(certificate))
    would = f"The certificate would read: {pair(c)} {_terms(c)}. It does not hold while a warning stands."
    cap = (
        f"The cap covers every release of the account '{c.account}' together, release '{c.release_id}' included, which"
        f" asked for {pair(c.run_request)} of it."
    )
    others = caveats(c.model_dump(), "'")
    return Statement(DISTRUST if reasons else claim(c), reasons, (*[would] * bool(reasons), cap, *others))


def pair(amount: Request | Spent | Certificate) -> str:
    """An (epsilon, delta) pair as the page writes it."""
    return f"epsilon = {_number(amount.epsilon)}, delta = {_number(amount.delta)}"


def claim(certificate: Certificate) -> str:
    """Who is protected and by how much: the account's cap, never the amount spent so far."""
    c = certificate
    if c.kind is AccountKind.CENTRAL:
        return f"{c.unit.capitalize()}s of the corpus are protected with {pair(c)} {_terms(c)}"
    amount = f"epsilon = {_number(c.epsilon)}" if c.kind is AccountKind.METRIC_LOCAL else pair(c)  # which has no delta
    return f"Releases of the account are {meaning_of(c.kind, c.parameters)} with {amount} {_terms(c)}"


def warnings(certificate: Certificate) -> list[str]:
    """The certificate's warnings, and ours when the cap is too large to mean anything; local methods say so alone."""
    weak = f"no meaningful guarantee: epsilon = {_number(certificate.epsilon)} is above {_number(NO_MEANING)}"
    large = certificate.epsilon > NO_MEANING and certificate.kind is not AccountKind.METRIC_LOCAL
    return certificate.warnings + [weak] * large


def _terms(certificate: Certificate) -> str:
    return f"(unit: {unit_of(certificate.unit, certificate.parameters)}, relation: {certificate.relation})"


def _number(value: float) -> str:
    return f"{value:.4g}"  # as the page writes a parameter
