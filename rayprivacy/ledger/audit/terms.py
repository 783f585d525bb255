"""What an account promised when it was opened: read from its `create` entry, then compared with its row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rayprivacy.core.units import NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.audit import rows
from rayprivacy.ledger.audit.rows import Row

CENTRAL, SELECTIVE, METRIC = "central", "selective", "metric-local"
MOST_ORDER = 1e5
_TERMS = {"unit", "relation", "epsilon", "delta", "composition", "kind", "corpus", "parameters"}
_MEANING = frozenset({"of", "protected"})


@dataclass(frozen=True)
class Terms:
    """The terms of one account.

    Attributes:
        name: of the account.
        values: unit, relation, epsilon, delta, composition, kind, corpus and parameters, as JSON values.
        created_at: of its `create` entry.
        later: what a `meaning` entry said of it after it was opened.
    """

    name: str
    values: Mapping[str, Any]
    created_at: str
    later: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters, with what was said later."""
        return {**self.values["parameters"], **self.later}

    @property
    def meaning(self) -> dict[str, str]:
        """What it says of who or what is protected: the columns behind the unit, the list of words."""
        return {name: str(value) for name, value in self.parameters.items() if name in _MEANING}

    @property
    def policy(self) -> str:
        """Name of the policy of a selective account."""
        return str(self.parameters.get("policy", ""))

    @property
    def epsilon(self) -> float:
        """The cap's epsilon."""
        return float(self.values["epsilon"])

    @property
    def delta(self) -> float:
        """The cap's delta."""
        return float(self.values["delta"])

    @property
    def composition(self) -> str:
        """Name of the admission rule."""
        return str(self.values["composition"])

    @property
    def order(self) -> float:
        """The Renyi order that the rule `rdp` uses."""
        return float(self.parameters["order"])

    @property
    def kind(self) -> str:
        """What the guarantee means."""
        return str(self.values["kind"])

    @property
    def corpus(self) -> str:
        """Label that accounts of one corpus share."""
        return str(self.values["corpus"])


def read_terms(row: Row, where: str) -> Terms:
    """The terms in a `create` entry."""
    if not row["account"]:
        rows.fail(where, "creates an account without a name")
    values = rows.mapping(rows.parse(row["detail"], where, "detail"), _TERMS, where, "detail")
    for key, known in _KNOWN.items():
        if rows.text(values[key], where, key) not in known:
            rows.fail(where, f"states an unknown {key}")
    rows.text(values["corpus"], where, "corpus")
    rows.number(values["epsilon"], 0.0, 1e300, where, "epsilon")
    if rows.number(values["delta"], 0.0, 1.0, where, "delta") == 1:
        rows.fail(where, "states a delta of 1")
    if (values["kind"] == METRIC) != (values["composition"] == "metric"):
        rows.fail(where, "states a kind and a composition that do not go together")
    _check_parameters(values, where)
    return Terms(row["account"], values, row["created_at"])


def read_meaning(terms: Terms, row: Row, where: str) -> Terms:
    """The terms after a `meaning` entry, which says once what the account left open."""
    said = rows.mapping(rows.parse(row["detail"], where, "detail"), set(), where, "detail", _MEANING)
    if not said or said.keys() & terms.meaning.keys():
        rows.fail(where, "says nothing of what an account protects, or says it twice")
    _check_meaning(said, terms.values, where)
    return replace(terms, later={**terms.later, **said})


def _check_meaning(said: Mapping[str, Any], values: Mapping[str, Any], where: str) -> None:
    if "of" in said and not rows.text(said["of"], where, "of").startswith(values["unit"] + ": "):
        rows.fail(where, "names columns for another unit than that of its account")
    if "protected" in said:
        if values["kind"] != METRIC:
            rows.fail(where, "names protected words of an account that is not metric-local")
        if said["protected"] != "":
            rows.digest(said["protected"], where, "protected")


def check_row(terms: Terms | None, row: Row) -> None:
    """Compare the row of an account with its `create` entry."""
    found = {key: value for key, value in row.items() if key not in ("name", "parameters")}
    if terms is not None:
        expected = {k: v for k, v in terms.values.items() if k != "parameters"} | {"created_at": terms.created_at}
        parameters = terms.values["parameters"]
        texts = (json.dumps(parameters, sort_keys=True), rows.canonical(parameters))
        if found == expected and row["parameters"] in texts:
            return
    rows.fail(f"the row of account {row['name']!r}", "differs from its create entry")


def _check_parameters(values: Mapping[str, Any], where: str) -> None:
    keys = {"order"} if values["composition"] == "rdp" else set()
    keys |= {"policy"} if values["kind"] == SELECTIVE else set()
    found = rows.mapping(values["parameters"], keys, where, "parameters", _MEANING)
    _check_meaning(found, values, where)
    if "policy" in found:
        rows.text(found["policy"], where, "parameters")
    if "order" in found:
        rows.number(found["order"], 1.0, MOST_ORDER, where, "parameters")


_KNOWN: dict[str, set[str]] = {
    "unit": {unit.value for unit in PrivacyUnit},
    "relation": {relation.value for relation in NeighbouringRelation},
    "composition": {"gdp", "zcdp", "rdp", "pld", "metric"},
    "kind": {CENTRAL, SELECTIVE, METRIC},
}
