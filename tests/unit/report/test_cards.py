"""Both cards say what the report says, are read by the hub's own library, load what they promise, and leak nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard
from run_directory import ATTACK, AUDIT, EVALUATION, Page, certificate, metrics

from rayprivacy.core.errors import ConfigError
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.reporting.cards import protection, write_cards
from rayprivacy.reporting.claim import statement
from rayprivacy.reporting.format import markdown
from rayprivacy.reporting.page import write_report

SENTINEL = 98765.4321
BREAKING = "x: [y\n---\n# {'z\": *a &b !c | `<b>"
OTHER = {name: certificate()[name] for name in ("unit", "relation", "delta")}
OTHER |= {"account": "second", "kind": "central", "epsilon": 8.0}
Make = Callable[..., Path]


def cards(run, fresh=True):
    if fresh:
        write_cards(run)
    return (run / "README.md").read_text(), (run / "model" / "README.md").read_text()


def code(card):
    return "\n".join(line[4:] for line in card.splitlines() if line.startswith("    "))


CHANGES: list[dict[str, Any]] = [{}, {"warnings": ["not private: test key"]}, {"epsilon": 60.0}]
CHANGES += [{"kind": "selective", "unit": "phrase"}, {"other_accounts": [OTHER]}]
CHANGES += [{"exposures": [{"account": "other", "kind": "selective", "release_id": "jft-1"}]}]


@pytest.mark.parametrize("changes", CHANGES)
def test_page_and_cards_make_the_same_statement(make_run, changes):
    run = make_run(changes, model=True)
    page, cert = Page(write_report(run)), Certificate.model_validate(certificate() | changes)
    said = statement(cert)
    for sentence in (said.headline, *said.reasons, *said.notes):
        assert sentence in page.text
        assert all(markdown(sentence) in card for card in cards(run, fresh=False))
    for card in cards(run, fresh=False):
        assert protection(cert) in card
        assert "User ids in the corpus are right" in card  # an assumption
        assert "Not protected: what many" in card


WARNED: dict[str, Any] = {"not private: test key": {"warnings": ["not private: test key"]}}
WARNED["no meaningful guarantee: epsilon = 60 is above 50"] = {"epsilon": 60.0}


@pytest.mark.parametrize("said", WARNED)
def test_a_warning_takes_the_place_of_the_claim(make_run, said):
    run = make_run(WARNED[said], model=True)
    page = Page(write_report(run))
    assert f"Warning: do not rely on a guarantee from this run {said}" in page.text
    assert [attrs for _, attrs in page.tags if attrs.get("role") == "alert"]
    assert page.text.count("treat it as private") == 2
    assert "Nothing is protected while a warning stands." in page.text
    for card in cards(run, fresh=False):
        assert said in card
        assert "treat all of them as private" in card
        assert "differential-privacy" not in ModelCard(card).data.tags
    for text in (page.text, *cards(run, fresh=False)):
        assert not [claim for claim in ("are protected with", "Share them", "free to share") if claim in text]


def test_a_selective_guarantee_is_not_called_more(make_run):
    run = make_run({"kind": "selective", "unit": "phrase"}, model=True)
    for text in (Page(write_report(run)).text, *cards(run)):
        assert "Releases of the account are selectively differentially private (what its policy calls" in text
        assert "Phrases of the corpus are protected with" not in text
        assert "in the sense of differential privacy" not in text
    assert "differential-privacy" not in ModelCard(cards(run)[1]).data.tags


def test_no_private_figure_is_on_a_card(make_run):
    figures = metrics() | {"timings_s": {"teachers": SENTINEL}}
    figures["heldout"]["perplexity"]["student"] = figures["heldout"]["cut_share"] = SENTINEL
    run = make_run(figures=figures, model=True)
    audited = AUDIT | {"verdict": {"flagged": False, "sentence": str(SENTINEL)}}
    (run / "audit.json").write_text(json.dumps(audited))
    (run / "evaluation.json").write_text(json.dumps(EVALUATION | {"notes": [str(SENTINEL)]}))
    assert "98,765.43" in Page(write_report(run)).text  # the page shows it, so there was something to leak
    before = cards(run, fresh=False)
    assert not [card for card in before if "98765" in card.replace(",", "")]
    (run / "metrics.json").unlink()
    assert cards(run) == before


@pytest.mark.parametrize(("rows", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (10_000, "10K<n<100K")])
def test_the_hubs_library_reads_the_front_matter(make_run, rows, size):
    run = make_run(model=True)
    pq.write_table(pa.table({"text": ["x"] * rows}), run / "synthetic.parquet")
    dataset, model = cards(run)
    data = DatasetCard(dataset).data.to_dict()
    assert data["pretty_name"] == "Synthetic text of release seqpate-2f8c11"
    assert data["configs"] == [{"config_name": "default", "data_files": "synthetic.parquet"}]
    assert data["size_categories"] == [size]
    assert "differential-privacy" in data["tags"]
    read = ModelCard(model).data.to_dict()
    assert (read["library_name"], read["pipeline_tag"]) == ("transformers", "text-generation")


def test_names_that_would_break_yaml_or_markdown(make_run):
    codes = {"values": {ATTACK: ["`---`", "x: [y", "*"]}}
    recipe = {"method": "generator", "corpus": {"labels": [ATTACK]}, "codes": codes}
    run = make_run({"release_id": BREAKING, "account": ATTACK}, model=True, recipe=recipe)
    pq.write_table(pa.table({"text": ["x"], ATTACK: ["*"]}), run / "synthetic.parquet")
    for card in cards(run):
        assert "<script>" not in card.replace(repr(ATTACK + ": `---`\n"), "")  # but for the string in the code block
        assert card.count("\n---\n") == 1
        assert yaml.safe_load(card.split("---\n")[1])["tags"]
        assert r'\`---\`", "x: \[y", "\*"' in card
        compile(code(card), "card", "exec")
    assert DatasetCard(cards(run)[0]).data["pretty_name"] == f"Synthetic text of release {' '.join(BREAKING.split())}"


def test_the_code_of_both_cards_runs(make_run, tiny_base, monkeypatch, capsys):
    codes = {"values": {"tone": ["kind", "dry"]}}
    run = make_run(recipe={"method": "generator", "corpus": {"labels": ["tone"]}, "codes": codes})
    copytree(tiny_base, run / "model")
    dataset, model = map(code, cards(run))
    assert "start + 'tone: kind\\n'" in model
    monkeypatch.chdir(run)
    scope: dict[str, Any] = {}
    exec(f"{dataset}\n{model}", scope)
    assert len(scope["texts"]) == 246
    assert scope["tokens"].shape[1] > scope["inputs"].input_ids.shape[1]
    assert capsys.readouterr().out.startswith("tone: kind")


def test_paths_of_the_recipe_stay_in_it(make_run):
    recipe = {"method": "seqpate", "model": {"base": "/srv/secret-project/base"}, "corpus": {"source": "/srv/chats"}}
    for card in cards(make_run(model=True, recipe=recipe)):
        assert "Base model: base." in card
        assert "/srv" not in card


def test_each_card_needs_what_it_describes_and_replaces_what_was_there(make_run):
    run = make_run()
    assert write_cards(run) == [run / "README.md"]
    assert not (run / "model").exists()
    make_run(model=True)
    (run / "model" / "README.md").write_text("short")
    write_report(run)
    first = cards(run, fresh=False)
    assert "short" not in first[1]
    write_report(run, internal=False)
    assert cards(run, fresh=False) == first
    for name in ("synthetic.parquet", "README.md"):
        (run / name).unlink()
    assert write_cards(run) == [run / "model" / "README.md"]
    assert not (run / "README.md").exists()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("recipe.yaml", "method: unheard-of", "'method' is 'unheard-of': use one of"),
        ("recipe.yaml", "- method", "is no recipe of a run"),
        ("synthetic.parquet", "no Parquet", "is no Parquet file"),
    ],
)
def test_bad_input_is_one_sentence(make_run, file, content, says):
    run = make_run()
    (run / file).write_text(content)
    with pytest.raises(ConfigError, match=says):
        write_cards(run)
