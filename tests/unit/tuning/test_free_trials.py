"""What trials among the questions of a release read, and which releases are refused in a sentence."""

import json

import pyarrow.parquet as pq
import pytest
import yaml
from every_method import BLOCKS
from question_sets import write_set, write_space
from rich.console import Console

from rayprivacy.core.errors import ConfigError
from rayprivacy.tuning import trainable
from rayprivacy.tuning.free_trials import FreeTrials
from rayprivacy.tuning.search import feasible, start_search
from rayprivacy.tuning.space import load_space

pytest.importorskip("bm25s")
VALUES = {"questions.value.inner_rate": 0.3, "questions.keep.share": 0.5}


@pytest.fixture
def place(tmp_path, tiny_base):
    write_set(tmp_path, tiny_base)
    return tmp_path


def trials(folder, **blocks):
    return FreeTrials.of(load_space(write_space(folder, **blocks)), folder / "out")


def searched(folder, space):
    return start_search(space, (), folder / "out", resume=False, console=Console(quiet=True))


def rewritten(folder, **changes):
    """The set with other words in its `stages.json`."""
    path = folder / "set" / "stages.json"
    stages = json.loads(path.read_text())
    stages["inputs"]["questions"] |= changes
    path.write_text(json.dumps(stages))


def run_of(folder, method, **files):
    """What a run directory has on top."""
    root = folder / "run"
    root.mkdir()
    recipe = {"method": method, **({"model": BLOCKS[method]["model"]} if "model" in BLOCKS[method] else {})}
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    for name, text in files.items():
        (root / name).write_text(text)
    return "run"


CERTIFIED = {"certificate.json": "{}"}
REFUSED = {  # releases, and what is said of them
    "nothing is there": (lambda _: "nowhere", "nowhere is no run directory: give one that `rayprivacy run --out` made"),
    "not finished": (lambda folder: run_of(folder, "generator"), "run holds a run that is not finished"),
    "no text": (
        lambda folder: run_of(folder, "edp_sgd", **CERTIFIED),
        "holds no text to ask about: its method, edp_sgd",
    ),
    "not asked": (
        lambda folder: run_of(folder, "generator", **CERTIFIED),
        "holds no finished questions: ask them with",
    ),
    "clozes": (lambda folder: rewritten(folder, pairs=None), "set was asked without questions.pairs.source"),
    "not annotated": (
        lambda folder: rewritten(folder, judge=None, value={}),
        "set was asked without questions.value.annotations, from which the readers of trials learn: ask with"
        " `rayprivacy questions --public pages.parquet --text text --out set -o questions.value.annotations=FILE`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_release_of_which_trials_cannot_be_made_is_one_sentence(name, place, monkeypatch):
    monkeypatch.chdir(place)
    break_it, says = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        searched(place, write_space(place, release=break_it(place) or "set"))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (place / "out").exists()


@pytest.mark.parametrize("out", ["set", "set/search"])
def test_a_search_lies_in_a_folder_of_its_own(place, out):
    with pytest.raises(ConfigError, match=r"set.*, which is the release, or lies in it: name a folder of its own"):
        FreeTrials.of(load_space(write_space(place)), place / out)


def test_a_set_that_is_half_made_is_refused_and_so_are_few_documents(place, monkeypatch):
    monkeypatch.chdir(place)
    stages = place / "set" / "stages.json"
    whole = json.loads(stages.read_text())
    stages.write_text(json.dumps({"inputs": whole["inputs"]}))
    with pytest.raises(ConfigError, match="set holds no finished questions: finish them with `rayprivacy questions"):
        trials(place)
    stages.write_text(json.dumps(whole))
    table = pq.read_table(place / "annotations.parquet")
    pq.write_table(table.slice(0, 27), place / "annotations.parquet")
    with pytest.raises(ConfigError, match="annotations are of 9 documents, of which two fifths judge"):
        trials(place)


def test_a_selection_that_the_judging_annotations_choose_is_no_trial(place):
    with pytest.raises(
        ConfigError, match=r"keep\.by is 'measured', which chooses by the annotations that judge trials"
    ):
        feasible(trials(place, fixed=None))
    found = trials(place, fixed=None, search={"questions.keep.by": {"choice": ["measured", "likelihood", "none"]}})
    assert feasible(found) == {"questions.keep.by": "none"}
    with pytest.raises(ConfigError, match="is 'likelihood', and the release has none"):
        found.bill({"questions.keep.by": "likelihood"})


def test_a_value_out_of_range_names_the_line_of_the_space(place):
    space = write_space(place, search={"questions.keep.share": {"uniform": [1.5, 2.0]}})
    with pytest.raises(ConfigError, match=r"'questions\.keep\.share' is .*\(line \d+ of .*space\.yaml\)"):
        searched(place, space)


def test_a_report_is_the_same_again_and_after_more_estimators_another(place):
    (place / "out").mkdir()
    once, again = (trials(place).report(VALUES, 1) for _ in range(2))
    assert once == again
    assert once["done"]
    pruned = trials(place, pruning={"grace": 1})
    first, second = pruned.report(VALUES, 1), pruned.report(VALUES, 2)
    assert (first["done"], second) == (False, once)


def test_a_free_trial_that_breaks_says_that_nothing_was_charged(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(FreeTrials, "report", lambda *_: 1 / 0)
    said = trainable._Runner(trials(place), VALUES, ".").report(1)
    assert said[trainable.FAILED].endswith("nothing was charged, so run the search again with --resume.")
