"""What a page and a card say of a certificate: its claim, its limits, and the account as a bar."""

from markupsafe import Markup

from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.certificate import Certificate, meaning_of
from rayprivacy.ledger.claim import claim, pair, statement, warnings
from rayprivacy.reporting.figures import Part, stacked_bar
from rayprivacy.reporting.format import number

__all__ = ["claim", "pair", "statement", "warnings"]
INTERNAL = "internal: measured on private text, not covered by the certificate"


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
