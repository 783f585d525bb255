"""A registry entry and Croissant metadata for a release, filled as far as the files of its run go.

The entry is for the Differential Privacy Deployments Registry of OpenDP, whose form is the YAML of the repository
opendp/deployments-registry-data: `schemas/deployments-schema.yaml` and `tests/good_deployments/template.yaml` at commit
057e5d8 (2026). Each value has the place that shows it in a comment behind it. Keys that no file fills are named in
comments, and the registry's own check asks for those that it requires.

The metadata follow the Croissant Format Specification 1.1 (MLCommons, January 2026), with two properties of its RAI
vocabulary. What it requires and no file shows is left out, for the owner to add: license, url, creator, datePublished.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rayprivacy.core.files import Json
from rayprivacy.core.units import AccountKind
from rayprivacy.reporting import claim
from rayprivacy.reporting.cards import tags
from rayprivacy.reporting.evidence_checklist import NOT_COVERED
from rayprivacy.reporting.evidence_facts import Answer, Evidence, shown
from rayprivacy.reporting.format import one_line
from rayprivacy.runs.directory import CERTIFICATE, RECIPE

# Keys of the entry that no file of any run can fill.
OPEN = {
    "basic": ("data_curators", "intended_use", "data_product_region", "data_product_sector", "publication_date"),
    "dp_variant": ("data_domain",),
    "privacy_loss": ("number_of_privacy_units",),
    "deployment_model": ("actors", "data_source_type_details", "access_type_details"),
    "implementation": ("post_processing", "justification"),
    "administrative": ("status", "registry_authors", "tier"),
}
TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
CROISSANT = "http://mlcommons.org/croissant/"
CONTEXT: Json = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": CROISSANT,
    "rai": f"{CROISSANT}RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in TERMS},
}


def registry_entry(e: Evidence) -> str | None:
    """The entry as YAML; None while a warning stands, for then nothing is claimed that could be registered."""
    if claim.warnings(e.certificate):
        return None
    slug = re.sub(r"[^a-z0-9]+", "-", e.certificate.release_id.lower()).strip("-")
    lines = [f"url_slug: {_yaml(slug)}  # {shown('release_id')}", "deployment:"]
    for section, keys in _sections(e).items():
        unknown = [key for key, answer in keys.items() if not answer.value]
        lines += [f"  {section}:", f"    # {NOT_COVERED}: {', '.join([*OPEN[section], *unknown])}"]
        lines += [f"    {key}: {_yaml(value)}  # {'; '.join(places)}" for key, (value, places) in keys.items() if value]
    return "\n".join(lines) + "\n"


def _sections(e: Evidence) -> dict[str, dict[str, Answer]]:
    c, answers = e.certificate, e.answers()
    of_method, of_release = (shown("method", by=RECIPE),), (shown("release_id"),)
    amounts = {"epsilon": c.epsilon} | ({} if c.kind is AccountKind.METRIC_LOCAL else {"delta": c.delta})
    source = {"certificate": {"misc": {"title": CERTIFICATE, "note": f"ledger entry {c.ledger_head}"}}}

    def said(*names: str) -> Answer:
        found = [answers[name] for name in names if name in answers]
        return Answer("; ".join(each.value for each in found), tuple(place for each in found for place in each.places))

    return {
        "basic": {
            "name": Answer(e.title, of_release),
            "description": Answer(e.description, of_method),
            "data_product_type": Answer("Synthetic data" if e.texts else "Machine learning model", of_method),
        },
        "dp_variant": {
            "variant_name": Answer("Approximate DP" if c.kind is AccountKind.CENTRAL else "Custom", (shown("kind"),)),
            "unprotected_quantities": said("unprotected", "left"),
        },
        "privacy_loss": {
            "privacy_unit": said("unit"),
            "privacy_unit_details": said("relation", "bound"),
            "privacy_parameters": Answer(amounts, (shown(*amounts),)),
            "privacy_parameters_details": said("claim", "request", "mixed"),
        },
        "deployment_model": {
            "model_name": Answer("Central", of_method),  # a run reads raw text, whatever its claim means
            "model_name_details": said("trust"),
            "trust_assumptions": said("access"),
            "release_type": Answer("One release", of_release),
            "release_type_details": said("release", "spent"),
            "data_source_type": Answer("Static", (shown("corpus_digest"),)),
            "access_type": Answer("Non-interactive", of_method),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": said("tuning", "public"),
            "mechanisms": said("mechanisms", "sensitivity", "rounding", "timing", "software"),
            "composition": said("composition", "stages"),
            "utility": said("quality"),
            "additional_information": said("figures", "assumptions", "text"),
        },
        "administrative": {"evidence_sources": Answer(source, (shown("ledger_head"),))},
    }


def _yaml(value: Any) -> str:
    """A value on one line."""
    dumped = yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return dumped.strip()[1:-1]


def croissant(e: Evidence) -> Json | None:
    """The metadata as JSON-LD, to stand beside the text and its card; None where no text is released."""
    if e.texts is None:
        return None
    c, name = e.certificate, e.facts.card.texts
    said, (protected, unprotected) = claim.statement(c), claim.limits(c)
    file = {"@type": "cr:FileObject", "@id": name, "name": name, "contentUrl": name, "contentSize": f"{e.size} B"}
    file |= {"encodingFormat": "application/x-parquet", "sha256": e.digest}
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": [f"{CROISSANT}1.1", f"{CROISSANT}RAI/1.0"],
        "name": e.title,
        "description": f"{e.description} {'. '.join([said.headline, *said.reasons])}.",
        "keywords": tags(c),
        "rai:personalSensitiveInformation": [one_line(each) for each in (protected, *c.assumptions)],
        "rai:dataLimitations": [one_line(each) for each in (unprotected, *said.notes)],
        "distribution": [file],
        "recordSet": [{"@type": "cr:RecordSet", "@id": "texts", "name": "texts", "field": [*_fields(e.texts, name)]}],
    }


def _fields(texts: pq.FileMetaData, file: str) -> Iterator[Json]:
    kinds = ((pa.types.is_boolean, "Boolean"), (pa.types.is_integer, "Integer"), (pa.types.is_floating, "Float"))
    for column in texts.schema.to_arrow_schema():
        kind = next((name for fits, name in kinds if fits(column.type)), "Text")
        field = {"@type": "cr:Field", "@id": f"texts/{column.name}", "name": column.name, "dataType": f"sc:{kind}"}
        yield field | {"source": {"fileObject": {"@id": file}, "extract": {"column": column.name}}}
