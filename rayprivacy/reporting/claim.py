"""What a certificate says, in sentences: the page, the model card and the data card all take them from here.

The claim is the account's cap, never what was spent so far. While a warning stands nothing is claimed, and what the
certificate would read is marked so.
"""

from typing import NamedTuple

from markupsafe import Markup

from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.certificate import Certificate, Request, Spent, caveats, meaning_of, unit_of
from rayprivacy.reporting.figures import Part, stacked_bar
from rayprivacy.reporting.format import number

NO_MEANING = 50.0
INTERNAL = "internal: measured on private text, not covered by the certificate"
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
    return f"epsilon = {number(amount.epsilon)}, delta = {number(amount.delta)}"


def claim(certificate: Certificate) -> str:
    """Who is protected and by how much: the account's cap, never the amount spent so far."""
    c = certificate
    if c.kind is AccountKind.CENTRAL:
        return f"{c.unit.capitalize()}s of the corpus are protected with {pair(c)} {_terms(c)}"
    amount = f"epsilon = {number(c.epsilon)}" if c.kind is AccountKind.METRIC_LOCAL else pair(c)  # which has no delta
    return f"Releases of the account are {meaning_of(c.kind, c.parameters)} with {amount} {_terms(c)}"


def limits(certificate: Certificate, texts: bool = True) -> tuple[str, str]:
    """What is protected, and what is not, of a release with text or without; the assumptions belong between the two."""
    c = certificate
    void = "Nothing is protected while a warning stands. Otherwise: " * bool(warnings(c))
    what, sense = f"the presence in the corpus of any one {c.unit}", "in the sense of differential privacy"
    if c.kind is not AccountKind.CENTRAL:
        what = f"{c.unit}s of the corpus"
        sense = f"in that releases are {meaning_of(c.kind, c.parameters).rstrip(',')}"
    return (
        f"{void}Protected: {what}, under {c.relation}, {sense}. The claim rests on these assumptions:",
        f"Not protected: what many {c.unit}s have in common, and anything the public model or public inputs knew"
        " before." + " Synthetic text is not checked for truth." * texts,
    )


def warnings(certificate: Certificate) -> list[str]:
    """The certificate's warnings, and ours when the cap is too large to mean anything; local methods say so alone."""
    weak = f"no meaningful guarantee: epsilon = {number(certificate.epsilon)} is above {number(NO_MEANING)}"
    large = certificate.epsilon > NO_MEANING and certificate.kind is not AccountKind.METRIC_LOCAL
    return certificate.warnings + [weak] * large


def account_parts(certificate: Certificate) -> list[Part]:
    """The account's epsilon as this release (its request in full), other releases and what is left: a reading aid."""
    spent = min(certificate.spent_diagnostic.epsilon, certificate.epsilon)
    this = min(certificate.run_request.epsilon, spent)
    values = {"this release": this, "other releases": spent - this, "left": certificate.epsilon - spent}
    css = ("bar-this", "bar-other", "bar-left")
    left = certificate.spent_diagnostic.left  # as the ledger says it, which is more than the difference
    said = values if left is None else values | {"left": left}
    return [
        Part(c, name, value, number(round(said[name], 4))) for c, (name, value) in zip(css, values.items(), strict=True)
    ]


def account_bar(certificate: Certificate) -> Markup:
    """The account as one stacked bar."""
    title = f"Account {certificate.account}: epsilon {number(certificate.epsilon)} in all"
    return stacked_bar("account", title, account_parts(certificate))


def _terms(certificate: Certificate) -> str:
    return f"(unit: {unit_of(certificate.unit, certificate.parameters)}, relation: {certificate.relation})"
