"""What an account promised when it was opened: read from its `create` entry, then compared with its row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rayprivacy.core.units import NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.audit import rows
from rayprivacy.ledger.audit.rows import Row

CENTRAL, SELECTIVE, METRIC = "central", "selective", "metric-local"
_TERMS = {"unit", "relation", "epsilon", "delta", "composition", "kind", "corpus", "parameters"}
_MEANING = frozenset({"of", "protected"})
_SUMMED = {"gdp", "zcdp", "rdp"}  # compositions that may keep a part of delta for thresholds
_KNOWN = {
    "unit": {unit.value for unit in PrivacyUnit},
    "relation": {relation.value for relation in NeighbouringRelation},
    "composition": {"gdp", "zcdp", "rdp", "pld", "metric"},
    "kind": {CENTRAL, SELECTIVE, METRIC},
}


@dataclass(frozen=True)
class Terms:
    """The terms of one account as its `create` entry has them; `parameters` also hold what was said later."""

    name: str
    created_at: str
    kind: str
    composition: str
    corpus: str
    epsilon: float
    delta: float
    parameters: Row
    values: Row

    @property
    def keeps_delta(self) -> bool:
        """Whether a part of delta is kept for thresholds."""
        return "threshold_delta" in self.parameters

    @property
    def kept_delta(self) -> float:
        """That part; 0 where there is none."""
        return float(self.parameters.get("threshold_delta", 0.0))

    @property
    def meaning(self) -> dict[str, str]:
        """What it says of who or what is protected: the columns behind the unit, the list of words."""
        return {name: str(value) for name, value in self.parameters.items() if name in _MEANING}


def read_terms(row: Row, where: str) -> Terms:
    """The terms in a `create` entry."""
    if not row["account"]:
        rows.fail(where, "creates an account without a name")
    values = rows.read_mapping(row, "detail", _TERMS, where)
    for key, known in _KNOWN.items():
        if rows.text(values[key], where, key) not in known:
            rows.fail(where, f"states an unknown {key}")
    corpus = rows.text(values["corpus"], where, "corpus")
    epsilon = rows.number(values["epsilon"], 0.0, 1e300, where, "epsilon")
    delta = rows.number(values["delta"], 0.0, 1.0, where, "delta")
    if delta == 1:
        rows.fail(where, "states a delta of 1")
    kind, composition = values["kind"], values["composition"]
    if (kind == METRIC) != (composition == "metric"):
        rows.fail(where, "states a kind and a composition that do not go together")
    _check_parameters(values, where)
    fixed = row["account"], row["created_at"], kind, composition, corpus, epsilon, delta
    return Terms(*fixed, values["parameters"], values)


def read_meaning(terms: Terms, row: Row, where: str) -> Terms:
    """The terms after a `meaning` entry, which says once what the account left open."""
    said = rows.read_mapping(row, "detail", set(), where, _MEANING)
    if not said or said.keys() & terms.meaning.keys():
        rows.fail(where, "says nothing of what an account protects, or says it twice")
    _check_meaning(said, terms.values, where)
    return replace(terms, parameters={**terms.parameters, **said})


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
    optional = _MEANING | ({"threshold_delta"} if values["composition"] in _SUMMED else set())
    found = rows.mapping(values["parameters"], keys, where, "parameters", optional)
    _check_meaning(found, values, where)
    if "policy" in found:
        rows.text(found["policy"], where, "parameters")
    if "threshold_delta" in found:
        kept = rows.number(found["threshold_delta"], 0.0, 1.0, where, "parameters")
        if not kept < values["delta"]:
            rows.fail(where, "keeps all of its delta for thresholds")
    if "order" in found:
        rows.number(found["order"], 1.0, 1e5, where, "parameters")
