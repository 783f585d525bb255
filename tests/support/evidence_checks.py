"""What holds of the evidence of any run: answers stand in the files that they name, and no internal figure does."""

import json
import re

import yaml

from rayprivacy.core.files import read_json
from rayprivacy.reporting.evidence import write_evidence
from rayprivacy.runs.directory import EVIDENCE

INTERNAL = ("audit.json", "evaluation.json")
# The keys of an entry of the registry, by its schema (see `reporting.evidence_forms`), and the values of some.
ENTRY = {
    "basic": "name data_curators description intended_use data_product_type data_product_region data_product_sector"
    " publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units privacy_parameters"
    " privacy_parameters_details",
    "deployment_model": "model_name model_name_details trust_assumptions actors release_type release_type_details"
    " data_source_type data_source_type_details access_type access_type_details",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms composition post_processing justification"
    " utility additional_information",
    "administrative": "evidence_sources status registry_authors tier",
}
VALUES = {
    "data_product_type": ("Synthetic data", "Machine learning model"),
    "variant_name": ("Approximate DP", "Custom"),
    "model_name": ("Central",),
    "release_type": ("One release",),
    "data_source_type": ("Static",),
    "access_type": ("Non-interactive",),
}


def evidence_of(run):
    """The texts of all forms by name, after a look at each of them."""
    folder = write_evidence(run)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    write_evidence(run)
    assert texts == {path.name: path.read_text() for path in (run / EVIDENCE).iterdir()}, "other bytes"
    lines = [line for part in json.loads(texts["checklist.json"])["parts"].values() for line in part]
    for line in lines:
        assert bool(line["shown_by"]) == (line["answer"] != "not covered"), line
        assert all(_is_there(run, **place) for place in line["shown_by"]), line
    rows = [row.split(" | ") for row in texts["checklist.md"].splitlines() if row.startswith("|")]
    assert len(rows) == len(lines) + 2 * 3
    if "registry.yaml" in texts:
        _look_at_entry(texts["registry.yaml"])
    found = "".join(texts.values())
    assert not internal_figures(run) & {*re.findall(r"\d+(?:\.\d+)*(?:e[-+]\d+)?", found)}
    return texts


def _is_there(run, file, keys):
    path = run / file
    if path.suffix == ".parquet" or not keys:
        return path.is_file()
    read = json.loads if path.suffix == ".json" else yaml.safe_load  # in Python, a hundred times slower
    found = read(path.read_text())
    return all(_holds(found, key.split(".")) for key in keys)


def _holds(found, names):
    for name in names:
        if not isinstance(found, dict) or name not in found:
            return False
        found = found[name]
    return True


def _look_at_entry(text):
    entry = yaml.safe_load(text)
    assert entry.keys() == {"url_slug", "deployment"}
    assert entry["deployment"].keys() == ENTRY.keys()
    for section, keys in entry["deployment"].items():
        unknown = re.search(rf"^  {section}:\n    # not covered: (.+)$", text, re.MULTILINE)
        assert {*keys, *unknown[1].split(", ")} == {*ENTRY[section].split()}, "each key is filled, or said to be open"
        assert all(keys[key] in values for key, values in VALUES.items() if key in keys)
    lines = [line for line in text.splitlines() if not line.endswith(":") and "# not covered" not in line]
    assert all(re.search(r"  # \S+\.(json|yaml|parquet)", line) for line in lines)


def internal_figures(run):
    """The figures of a run that may not be shared, as they are written in full and as pages round them."""
    metrics = read_json(run / "metrics.json") if (run / "metrics.json").is_file() else {}
    blocks = [
        block
        for name, block in metrics.items()
        if name != "timings_s" and isinstance(block, dict) and not block.get("releasable")
    ]
    blocks += [read_json(run / name) for name in INTERNAL if (run / name).is_file()]
    claimed = {*_numbers(read_json(run / "certificate.json"))}  # which an audit repeats
    shown = _written({*_numbers(blocks)} - claimed, digits=4)  # shorter ones stand anywhere by chance
    return shown | _written({*_numbers(metrics.get("timings_s"))}, digits=5)  # other ones in each run


def _written(numbers, digits):
    ways = {way for number in map(abs, numbers) for way in (repr(number), f"{number:.4g}", f"{number:.2f}")}
    return {way for way in ways if len(way.replace(".", "")) >= digits}


def _numbers(found):
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from _numbers(each)
    elif isinstance(found, float) and found % 1:
        yield found
