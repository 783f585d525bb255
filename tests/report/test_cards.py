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


def with_model(run: Path, base: Path | None = None) -> Path:
    if base:
        copytree(base, run / "model")
    else:
        (run / "model").mkdir()
        (run / "model" / "config.json").write_text("{}")
    return run


def with_cards(run: Path) -> Path:
    write_cards(with_model(run))
    return run


def cards(run: Path) -> tuple[str, str]:
    return (run / "README.md").read_text(), (run / "model" / "README.md").read_text()


def code(card: str) -> str:
    return "\n".join(line[4:] for line in card.splitlines() if line.startswith("    "))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"warnings": ["not private: test key"]},
        {"epsilon": 60.0},
        {"kind": "selective", "unit": "phrase"},
        {"exposures": [{"account": "other", "kind": "selective", "release_id": "jft-1"}]},
        {"other_accounts": [OTHER]},
    ],
)
def test_page_and_cards_make_the_same_statement(make_run: Make, changes: dict[str, object]) -> None:
    run = with_model(make_run(changes))
    page = Page(write_report(run))
    said = statement(Certificate.model_validate(certificate() | changes))
    for sentence in (said.headline, *said.reasons, *said.notes):
        assert sentence in page.text
        for card in cards(run):
            assert markdown(sentence) in card
    for card in cards(run):
        assert protection(Certificate.model_validate(certificate() | changes)) in card
        assert "User ids in the corpus are right" in card  # an assumption
        assert "Not protected: what many" in card


def test_a_warning_takes_the_place_of_the_claim(make_run: Make) -> None:
    run = with_cards(make_run({"epsilon": 60.0}))
    for card in cards(run):
        assert "are protected with" not in card
        assert "no meaningful guarantee: epsilon = 60 is above 50" in card
        assert "differential-privacy" not in ModelCard(card).data.tags
        assert "treat all of them as private" in card
        assert "Share them" not in card


def test_a_selective_guarantee_is_not_called_more(make_run: Make) -> None:
    run = with_model(make_run({"kind": "selective", "unit": "phrase"}))
    for text in (Page(write_report(run)).text, *cards(run)):
        assert "Releases of the account are selectively differentially private (what its policy calls" in text
        assert "Phrases of the corpus are protected with" not in text
        assert "in the sense of differential privacy" not in text
    assert "differential-privacy" not in ModelCard(cards(run)[1]).data.tags


def test_no_private_figure_is_on_a_card(make_run: Make) -> None:
    figures = metrics()
    figures["heldout"]["perplexity"]["student"] = SENTINEL
    figures["heldout"]["cut_share"] = SENTINEL
    figures["timings_s"] = {"teachers": SENTINEL}
    run = with_model(make_run(figures=figures))
    audited = AUDIT | {"verdict": {"flagged": False, "sentence": str(SENTINEL)}}
    (run / "audit.json").write_text(json.dumps(audited))
    (run / "evaluation.json").write_text(json.dumps(EVALUATION | {"notes": [str(SENTINEL)]}))
    assert "98,765.43" in Page(write_report(run)).text  # the page shows it, so there was something to leak
    for card in cards(run):
        assert "98765" not in card.replace(",", "")
    before = cards(run)
    (run / "metrics.json").unlink()
    write_cards(run)
    assert cards(run) == before


def test_the_hubs_library_reads_the_front_matter(make_run: Make) -> None:
    run = with_cards(make_run())
    data = DatasetCard(cards(run)[0]).data.to_dict()
    assert data["pretty_name"] == "Synthetic text of release seqpate-2f8c11"
    assert data["configs"] == [{"config_name": "default", "data_files": "synthetic.parquet"}]
    assert "differential-privacy" in data["tags"]
    model = ModelCard(cards(run)[1]).data.to_dict()
    assert (model["library_name"], model["pipeline_tag"]) == ("transformers", "text-generation")


@pytest.mark.parametrize(("rows", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (10_000, "10K<n<100K")])
def test_the_size_is_that_of_the_released_text(make_run: Make, rows: int, size: str) -> None:
    run = make_run()
    pq.write_table(pa.table({"text": ["x"] * rows}), run / "synthetic.parquet")
    write_cards(run)
    assert DatasetCard((run / "README.md").read_text()).data["size_categories"] == [size]


def test_names_that_would_break_yaml_or_markdown(make_run: Make) -> None:
    run = with_model(make_run({"release_id": BREAKING, "account": ATTACK}))
    recipe = {
        "method": "generator",
        "corpus": {"labels": [ATTACK]},
        "codes": {"values": {ATTACK: ["`---`", "x: [y", "*"]}},
    }
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    pq.write_table(pa.table({"text": ["x"], ATTACK: ["*"]}), run / "synthetic.parquet")
    write_cards(run)
    for card in cards(run):
        assert "<script>" not in card.replace(repr(ATTACK + ": `---`\n"), "")  # but for the string in the code block
        assert card.count("\n---\n") == 1
        assert yaml.safe_load(card.split("---\n")[1])["tags"]
        assert r'\`---\`", "x: \[y", "\*"' in card
        compile(code(card), "card", "exec")
    assert DatasetCard(cards(run)[0]).data["pretty_name"] == f"Synthetic text of release {' '.join(BREAKING.split())}"


def test_the_code_of_both_cards_runs(
    make_run: Make, tiny_base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_model(make_run(), tiny_base)
    recipe = {"method": "generator", "corpus": {"labels": ["tone"]}, "codes": {"values": {"tone": ["kind", "dry"]}}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    write_cards(run)
    dataset, model = map(code, cards(run))
    assert "start + 'tone: kind\\n'" in model
    monkeypatch.chdir(run)
    scope: dict[str, Any] = {}
    exec(f"{dataset}\n{model}", scope)
    assert len(scope["texts"]) == 246
    assert scope["tokens"].shape[1] > scope["inputs"].input_ids.shape[1]
    assert capsys.readouterr().out.startswith("tone: kind")


def test_paths_of_the_recipe_stay_in_it(make_run: Make) -> None:
    run = with_model(make_run())
    recipe = {"method": "seqpate", "model": {"base": "/srv/secret-project/base"}, "corpus": {"source": "/srv/chats"}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    write_cards(run)
    for card in cards(run):
        assert "Base model: base." in card
        assert "/srv" not in card


def test_each_card_needs_what_it_describes(make_run: Make) -> None:
    run = make_run()
    assert write_cards(run) == [run / "README.md"]
    assert not (run / "model").exists()
    (run / "synthetic.parquet").unlink()
    (run / "README.md").unlink()
    assert write_cards(with_model(run)) == [run / "model" / "README.md"]
    assert not (run / "README.md").exists()


def test_the_report_writes_over_the_short_card_and_always_the_same(make_run: Make) -> None:
    run = with_model(make_run())
    (run / "model" / "README.md").write_text("short")
    write_report(run)
    first = cards(run)
    assert "short" not in first[1]
    write_report(run, internal=False)
    assert cards(run) == first


def test_bad_input_is_one_sentence(make_run: Make) -> None:
    run = make_run()
    (run / "recipe.yaml").write_text("method: unheard-of")
    with pytest.raises(ConfigError, match="'method' is 'unheard-of': use one of"):
        write_cards(run)
    (run / "recipe.yaml").write_text("- method")
    with pytest.raises(ConfigError, match="is no recipe of a run"):
        write_cards(run)
    (run / "recipe.yaml").write_text("method: seqpate")
    (run / "synthetic.parquet").write_text("no Parquet")
    with pytest.raises(ConfigError, match="is no Parquet file"):
        write_cards(run)
