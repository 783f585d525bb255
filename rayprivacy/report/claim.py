"""The sentence at the top of the page, and what may not be said when the ledger raised a warning."""

from markupsafe import Markup

from rayprivacy.report.figures import Part, stacked_bar
from rayprivacy.report.format import number
from rayprivacy.report.inputs import Amount, Certificate

NO_MEANING = 50.0
INTERNAL = "internal: measured on private text, not covered by the certificate"


def pair(amount: Amount | Certificate) -> str:
    """An (epsilon, delta) pair as the page writes it."""
    return f"epsilon = {number(amount.epsilon)}, delta = {number(amount.delta)}"


def claim(certificate: Certificate) -> str:
    """Who is protected and by how much: the account's cap, never the amount spent so far."""
    c = certificate
    return f"{c.unit.capitalize()}s of the corpus are protected with {pair(c)} (unit: {c.unit}, relation: {c.relation})"


def warnings(certificate: Certificate) -> list[str]:
    """The ledger's warnings, and ours when the cap is too large to mean anything."""
    weak = f"no meaningful guarantee: epsilon = {number(certificate.epsilon)} is above {number(NO_MEANING)}"
    return certificate.warnings + [weak] * (certificate.epsilon > NO_MEANING)


def account_parts(certificate: Certificate) -> list[Part]:
    """The account's epsilon as this release, other releases and what is left: a reading aid, since epsilons do not add.

    The ledger adds events; here the run's request counts in full and the others are what is spent beyond it.
    """
    spent = min(certificate.spent_diagnostic.epsilon, certificate.epsilon)
    this = min(certificate.run_request.epsilon, spent)
    values = {"this release": this, "other releases": spent - this, "left": certificate.epsilon - spent}
    css = ("bar-this", "bar-other", "bar-left")
    return [Part(c, name, value, number(round(value, 4))) for c, (name, value) in zip(css, values.items(), strict=True)]


def account_bar(certificate: Certificate) -> Markup:
    """The account as one stacked bar."""
    title = f"Account {certificate.account}: epsilon {number(certificate.epsilon)} in all"
    return stacked_bar("account", title, account_parts(certificate))
