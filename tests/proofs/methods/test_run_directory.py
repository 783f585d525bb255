"""A run directory belongs to one recipe and its first public inputs, and its driver quotes no private text."""

import inspect
import json
import traceback

import pytest
from rich.console import Console

from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.corpus import verify
from rayprivacy.methods.generator import method
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.methods.seqpate import heldout
from rayprivacy.methods.two_stage import heldout as two_stage_heldout
from rayprivacy.runs import heldout as heldout_documents
from rayprivacy.runs.directory import MEASURED, Run, forget_another_corpus, log_entries


@pytest.fixture
def run(tmp_path):
    return Run.open(tmp_path / "out", parse_recipe({"method": "seqpate"}), resume=False, console=Console(quiet=True))


@pytest.mark.parametrize("older", [False, True])
def test_a_run_is_held_to_its_public_inputs(run, older):
    if older:  # begun by a version that bound no inputs: bound when it goes on
        run.public("pseudo-0.json").write_text("[]")
    run.bind(base_model="a", prompts="b")
    run.bind(base_model="a", prompts="b", codes="c")  # as a later version may
    changed = r"the base model of .*/out changed since the run began: bring the former back"
    for digests, says in (
        ({"base_model": "c", "prompts": "b"}, changed),
        ({"base_model": "a", "prompts": "c"}, "the prompts of"),
        ({"codes": "d"}, "the codes of"),
    ):
        with pytest.raises(ConfigError, match=says):
            run.bind(**digests)
    run.bind(base_model="a", prompts="b")


def test_a_log_that_a_full_disk_has_torn_is_read_and_goes_on(run):
    with run.stage("first"):
        pass
    log = run.root / "run.log"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"time": 1, "stage": "second", "e')
    with run.stage("second"):
        pass
    assert log.read_bytes().startswith(whole + b'{"time": 1, "stage": "second", "e\n{')
    assert set(run.timings()) == {"first", "second"}
    assert [entry["event"] for entry in log_entries(run.root)] == ["start", "done"] * 2


def test_figures_of_another_corpus_are_deleted(tmp_path):
    """Its certificate and cards too, so that no report and no audit takes them for those of what is written now."""
    forget_another_corpus(tmp_path, "a")  # a first certificate has nothing to forget
    kept = {"model.safetensors", "recipe.yaml"}
    named = {*MEASURED, "README.md", "certificate.md", "certificate.json", *kept}
    for name in named:
        (tmp_path / name).write_text("{}")
    for name in ("plots", "questions", "evidence"):
        (tmp_path / name).mkdir()
    (tmp_path / "certificate.json").write_text(json.dumps({"corpus_digest": "a"}))
    forget_another_corpus(tmp_path, "a")
    assert {path.name for path in tmp_path.iterdir()} == {*named, "plots", "questions", "evidence"}
    forget_another_corpus(tmp_path, "b")
    assert {path.name for path in tmp_path.iterdir()} == kept


SECRET = "my test was positive"


class _Rows:
    """Whatever is asked of it, it quotes a private row, as parsers do."""

    def __getattr__(self, name):
        raise ValueError(f"cannot parse {SECRET!r}")

    __truediv__ = __getattr__


DRIVERS = (
    *(heldout.heldout_metrics, heldout_documents.heldout_metrics, verify.verify_shards, method.label_sums),
    *(two_stage_heldout.heldout_metrics, two_stage_heldout.tree_metrics),
)


@pytest.mark.parametrize("function", DRIVERS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_private_text_stays_out_of_what_stops_a_driver(function):
    with pytest.raises(RayPrivacyError, match=r"stopped with ValueError \(its text is withheld") as caught:
        function(*[_Rows() for _ in inspect.signature(function).parameters])
    assert SECRET not in "".join(traceback.format_exception(caught.value))
