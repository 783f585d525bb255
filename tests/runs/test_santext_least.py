"""SanText with the least that each of its settings allows: a whole run, or a sentence before anything is charged."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from annotated_types import Ge, Gt
from santext_bench import charges_of, ledger_of, santext_bench
from toy_bench import QUIET, USERS

import rayprivacy as rp
from rayprivacy.api import Result
from rayprivacy.core.config import Config
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.drive import drive
from rayprivacy.sanitize.settings import SanitizeConfig

pytestmark = pytest.mark.usefixtures("local_ray")

LEAST_FLOAT = math.nextafter(0.0, 1.0)
BASE = {"words": 40, "epsilon": 2.0, "keep": None, "plus": None, "max_tokens": 8}
VALUES = {"kind": "randomize", "values": {"mood": ["glad", "sad"]}}
# Of every setting the least that it allows, or of words its plainest choice, with what it needs beside it.
LEAST: dict[str, dict[str, Any]] = {
    "mechanism": {"mechanism": "randomized_response"},
    "vectors": {"vectors": "base", "words": 2},
    "vectors_file": {"vectors_file": "two.npz", "words": 2},
    "words": {"words": 2},
    "length": {"length": "raw"},
    "cap": {"cap": 1e-6},
    "epsilon": {"epsilon": 1e-9},
    "keep": {"epsilon": None, "keep": LEAST_FLOAT},
    "plus": {"plus": {}, "words": 2},
    "plus.sensitive": {"plus": {"sensitive": LEAST_FLOAT}},
    "plus.p": {"plus": {"p": LEAST_FLOAT}},
    "max_tokens": {"max_tokens": 1},
    "layout": {"layout": "keep"},
    "entities": {"entities": []},
    "detector": {"detector": "presidio"},
    "consistent": {"consistent": True},
    "labels": {"labels": {}},
    "labels.kind": {"labels": VALUES},
    "labels.epsilon": {"labels": VALUES | {"epsilon": LEAST_FLOAT}},
    "labels.values": {"labels": VALUES, "mechanism": "randomized_response", "words": 2},
}
# By day what is bounded, two settings at a time; each alone at night.
DAILY = ("mechanism max_tokens", "vectors_file labels.epsilon", "cap plus.p", "epsilon plus.sensitive", "plus")
REFUSED = {"keep": r"^sanitize\.keep is 4\.9.*e-324, and a draw that knows nothing of the word keeps 0\.025"}
if find_spec("presidio_analyzer") is None:
    REFUSED["detector"] = r"^sanitize\.detector is 'presidio', which is not installed"


def _fields(config, block=""):
    """The settings of a block and of those inside it, each with its bounds."""
    for name, field in config.model_fields.items():
        yield block + name, list(field.metadata)
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, Config):
                yield from _fields(kind, f"{block}{name}.")


def test_every_setting_is_tried_with_the_least_that_it_allows():
    """A setting that is new, or whose bound moves, is noticed here."""
    assert [name for name, _ in _fields(SanitizeConfig)] == list(LEAST)
    for name, bounds in _fields(SanitizeConfig):
        value: Any = {"sanitize": LEAST[name]}
        for key in ("sanitize", *name.split(".")):
            value = value.get(key)
        least = [bound.ge for bound in bounds if isinstance(bound, Ge)]
        least += [math.nextafter(bound.gt, math.inf) for bound in bounds if isinstance(bound, Gt)]  # type: ignore[arg-type]
        assert least in ([], [value]), name


@pytest.fixture(scope="module")
def bench(tmp_path_factory, tiny_base):
    made = santext_bench(tmp_path_factory.mktemp("least"), tiny_base)
    table, moods = pq.read_table(made.folder / "talk.parquet"), ["glad", "sad", None] * (USERS * 4 // 3)
    pq.write_table(table.append_column("mood", [moods]), made.folder / "talk.parquet")
    np.savez(made.folder / "two.npz", words=["the", "word"], vectors=np.eye(2))
    return made


def _run(bench, names):
    own = BASE | {key: value for name in names.split() for key, value in LEAST[name].items()}
    if "vectors_file" in own:
        own["vectors_file"] = str(bench.folder / own["vectors_file"])
    more = {"sanitize": own, "corpus.labels": ["mood"], "privacy.epsilon": 1e6, "evaluation.attacked": 5}
    recipe = bench.load({"privacy.ledger": ledger_of(bench, names), **more})
    return Result(drive(method_of(recipe), recipe, bench.folder / names, console=QUIET).run.root)


@pytest.mark.parametrize("name", REFUSED)
def test_the_least_of_some_settings_is_refused_before_an_account_is_opened(bench, name):
    with pytest.raises(rp.ConfigError, match=REFUSED[name]):
        _run(bench, name)
    assert not (bench.folder / f"{name}.db").exists()


@pytest.mark.parametrize(
    "names",
    [*DAILY, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in LEAST if name not in (*REFUSED, *DAILY))],
)
def test_the_least_that_a_setting_allows_runs_to_its_end(bench, names):
    result = _run(bench, names)
    assert charges_of(bench, names) == 1
    assert len(pq.read_table(result.path / "sanitized.parquet")) == USERS * 4
    charts = result.metrics["exhibits"]["charts"]
    assert len(charts) == (0 if "mechanism" in names or names == "labels.values" else 3)
    for line in (line for chart in charts for line in chart["series"].values()):
        assert line
        assert np.isfinite(line).all()
    if names in LEAST:
        assert Path(rp.report(result.path)).is_file()
