"""Evidence says what files show, names them, and has no figure that was measured on private text."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import command
from evidence_checks import evidence_of, internal_figures
from run_directory import ATTACK, AUDIT, EVALUATION, certificate, metrics

from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.certificate import AUDIT_WARNING
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import method_named, method_names
from rayprivacy.runs.assumptions import CLUSTER, DISCRETE_NOISE, OF_UNIT, TIMING, of_training

SENTINEL = 98765.4321
RECIPE = {"method": "generator", "model": {"base": "/srv/secret/base"}, "corpus": {"source": "/srv/secret/chats"}}


def lines_of(texts):
    return {line["question"]: line for part in json.loads(texts["checklist.json"])["parts"].values() for line in part}


def entry_of(texts):
    return yaml.safe_load(texts["registry.yaml"])["deployment"]


@pytest.mark.parametrize("name", method_names())
def test_every_method_has_evidence_whose_files_show_it(make_run, name):
    card = method_named(name).card
    run = make_run(recipe={"method": name, "corpus": {"max_records_per_user": 7}, "model": {"base": "org/name"}})
    if card.texts:
        (run / "synthetic.parquet").rename(run / card.texts)
    texts = evidence_of(run)
    assert texts.keys() == {"checklist.md", "checklist.json", "registry.yaml", *["croissant.json"] * bool(card.texts)}
    answers = [line["answer"] for line in lines_of(texts).values()]
    assert card.citation in " ".join(answers)
    assert "7 records of a user at most" in answers
    assert entry_of(texts)["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.0, "delta": 1e-6}


def test_no_internal_figure_and_nothing_private_is_in_it(make_run):
    figures = metrics() | {"timings_s": {"teachers": SENTINEL}, "exhibits": {"charts": [], "tables": []}}
    figures["heldout"]["perplexity"]["student"] = figures["heldout"]["cut_share"] = SENTINEL
    run = make_run(figures=figures)
    (run / "audit.json").write_text(json.dumps(AUDIT | {"verdict": {"flagged": False, "sentence": str(SENTINEL)}}))
    (run / "evaluation.json").write_text(json.dumps(EVALUATION | {"notes": [str(SENTINEL)]}))
    (run / "private").mkdir()
    (run / "private" / "made").write_text("SECRET")
    assert {"48.50", "61.32", "0.625", "98765.4321"} <= {*internal_figures(run)}
    texts = evidence_of(run)
    found = "".join(texts.values())
    assert not [word for word in ("98765", "98,765", "SECRET", "Not flagged", "hunter2", ATTACK) if word in found]
    shown_by = lines_of(texts)["What was measured on private text without noise?"]["shown_by"]
    assert [place["file"] for place in shown_by] == ["metrics.json", "audit.json", "evaluation.json"]
    (run / "private" / "made").unlink()
    (run / "private").rmdir()
    assert evidence_of(run) == texts


def test_figures_of_the_text_that_are_not_marked_are_not_shown(make_run):
    question = "What is known of the released text by itself?"
    assert "words in the mean" in lines_of(evidence_of(make_run()))[question]["answer"]
    synthetic = {key: value for key, value in metrics()["synthetic"].items() if key != "releasable"}
    texts = evidence_of(make_run(figures={"synthetic": synthetic}))
    assert lines_of(texts)[question]["answer"] == "not covered"
    assert "utility" not in entry_of(texts)["implementation"]


def test_paths_stay_in_their_files(make_run):
    versions = {"versions": {"rayprivacy": "0.1.0", "base model": "/srv/secret/base 0123456789abcdef"}}
    texts = evidence_of(make_run(versions, recipe=RECIPE))
    assert "/srv" not in "".join(texts.values())
    assert lines_of(texts)["Which trained model is released?"]["answer"] == "one made from the public base base"


@pytest.mark.parametrize("changes", [{"warnings": ["not private: test key"]}, {"epsilon": 60.0}])
def test_while_a_warning_stands_it_comes_first_and_nothing_is_registered(make_run, changes):
    evidence_of(make_run())
    texts = evidence_of(make_run(changes))
    assert "registry.yaml" not in texts  # nor is the one from before
    first, second, *_ = lines_of(texts).values()
    assert first["answer"] in ("not private: test key", "no meaningful guarantee: epsilon = 60 is above 50")
    assert second["answer"].endswith("It does not hold while a warning stands.")
    described = json.loads(texts["croissant.json"])
    assert "do not rely on a guarantee" in described["description"]
    assert "differential-privacy" not in described["keywords"]


def test_other_kinds_of_guarantees_are_custom_and_a_local_one_has_no_delta(make_run):
    for kind, amounts in (("selective", {"epsilon", "delta"}), ("metric-local", {"epsilon"})):
        entry = entry_of(evidence_of(make_run({"kind": kind})))
        assert entry["dp_variant"]["variant_name"] == "Custom"
        assert entry["privacy_loss"]["privacy_parameters"].keys() == amounts


def test_metadata_have_what_they_must_and_the_digest_of_the_text(make_run):
    run = make_run()
    pq.write_table(pa.table({"text": ["x"], "stars": [4], "share": [0.5], "kept": [True]}), run / "synthetic.parquet")
    found = json.loads(evidence_of(run)["croissant.json"])
    assert found["@type"] == "sc:Dataset"
    assert "http://mlcommons.org/croissant/1.1" in found["conformsTo"]
    assert found["name"] == "Synthetic text of release seqpate-2f8c11"
    (file,), (records,) = found["distribution"], found["recordSet"]
    data = (run / file["contentUrl"]).read_bytes()
    assert (file["sha256"], file["contentSize"]) == (hashlib.sha256(data).hexdigest(), f"{len(data)} B")
    assert {field["name"]: field["dataType"] for field in records["field"]} == {
        **{"text": "sc:Text", "stars": "sc:Integer", "share": "sc:Float", "kept": "sc:Boolean"}
    }
    assert {field["source"]["fileObject"]["@id"] for field in records["field"]} == {file["@id"]}


def test_names_that_would_break_a_form(make_run):
    texts = evidence_of(make_run({"release_id": "x: [y\n---\n# {'z\": *a &b !c | `<b>", "account": ATTACK}))
    assert entry_of(texts)["basic"]["name"].startswith("Synthetic text of release x: [y --- # {")
    assert yaml.safe_load(texts["registry.yaml"])["url_slug"] == "x-y-z-a-b-c-b"


def test_every_assumption_stands_once_where_it_belongs(make_run):
    units = [sentence for unit in PrivacyUnit for sentence in OF_UNIT[unit]]
    said = [
        TIMING,
        CLUSTER,
        *DISCRETE_NOISE.values(),
        *units,
        *of_training(PrivacyUnit.USER),
        "It left the private side.",
    ]
    lines = lines_of(evidence_of(make_run({"assumptions": said})))
    answers = " ".join(line["answer"] for line in lines.values())
    assert [answers.count(sentence) for sentence in said] == [1] * len(said)
    assert lines["Are running time, memory and other side channels protected?"]["answer"] == TIMING
    unprotected = lines["What is released as it is, or not protected?"]["answer"]
    assert unprotected == OF_UNIT[PrivacyUnit.PHRASE][0]
    finite = lines["How are noise and sums of finite precision accounted for?"]["answer"]
    assert all(sentence in finite for sentence in DISCRETE_NOISE.values())


def test_an_export_of_the_ledger_is_replayed_and_holds_the_release(make_run, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger.open(url) as book:
        book.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6), "gdp")
        head = book.verify().head
    run = make_run({"ledger_head": head}, name="run")
    question = "Does the book of all charges replay?"
    assert lines_of(evidence_of(run))[question]["answer"] == "not covered"
    exported = command(["ledger", "export", "--ledger", url, "--out", str(run / "ledger-export")], tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert lines_of(evidence_of(run))[question]["answer"] == "it does, and holds the entry of the certificate"
    (run / "certificate.json").write_text(json.dumps(certificate()))
    done = command(["evidence", str(run)], tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


LACKING = {
    "certificate.json": "holds a run that is not finished",
    "recipe.yaml": "is no run directory",
    "synthetic.parquet": "does not exist",
}


@pytest.mark.parametrize("name", LACKING)
def test_what_is_no_finished_run_is_refused_in_a_sentence(make_run, tmp_path, name):
    run = make_run(name="run")
    (run / name).unlink()
    done = command(["evidence", str(run)], tmp_path)
    assert done.returncode == 2
    assert LACKING[name] in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (run / "evidence").exists()


def test_the_command_says_where_the_forms_are_and_refuses_a_run_with_planted_secrets(make_run, tmp_path):
    run = make_run(name="run")
    done = command(["evidence", str(run)], tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{run / 'evidence'}\n")
    done = command(["evidence", str(make_run({"warnings": [AUDIT_WARNING]}, name="audited"))], tmp_path)
    assert done.returncode == 2
    assert "run the recipe without 'audit'" in done.stderr
    done = command(["evidence", str(tmp_path / "nowhere")], tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
