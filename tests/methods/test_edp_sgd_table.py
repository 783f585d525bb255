"""The table of taggers on corpora of a few rows: arms, claims of epsilon, and rows that are kept."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_jobs import sentence
from small_tagger import labelled

pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]
SNIPS = {"eat": "PlayMusic", "go": "GetWeather", "B-food": "B-artist", "B-place": "B-city"}
DIALOG = {"eat": "bookflight", "go": "thankyou", "B-food": "name", "B-place": "arrival_city"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Requests and turns of a service, in the columns and with the names of the real files."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    texts = [sentence(user, number) for user in range(60) for number in range(2)]
    told = [labelled(text) for text in texts]
    tokens = [text.split() for text in texts]
    snips = {
        "split": ["train"] * len(texts),
        "tokens": tokens,
        "intent": [SNIPS[intent] for intent, _ in told],
        "bio": [[SNIPS.get(label, label) for label in slots.split()] for _, slots in told],
    }
    pq.write_table(pa.table(snips), tmp_path / "snips_intents_slots.parquet")
    turns = {
        "domain": ["airline"] * len(texts),
        "split": [("train", "train", "dev", "test")[at // 2 % 4] for at in range(len(texts))],
        "conversation_id": [f"talk {at // 2}" for at in range(len(texts))],
        "utterance": texts,
        "intent": [DIALOG[intent] for intent, _ in told],
        "slot_labels": [" ".join(DIALOG.get(label, label) for label in slots.split()) for _, slots in told],
    }
    pq.write_table(pa.table(turns), tmp_path / "multidogo_turn.parquet")
    return tmp_path


def _words(data: Path, base: Path, *words: str) -> list[str]:
    few = ["--steps", "8", "--rate", "0.5", "--norm", "0.5", "--tested", "40", "--layers", "1"]
    return ["--data", str(data), "--work", str(data / "rows"), "--base", str(base), *few, *words]


def test_rows_are_measured_claimed_kept_and_found_again(
    data: Path, tiny_bert: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import edpsgd_table as table

    out = data / "table.json"
    arms = ["SGD", "z0 0.1", "N 16", "each", "constant, scaled"]
    words = _words(data, tiny_bert, "--corpora", "snips", "--arms", *arms, "--json", "--out", str(out))
    table.main(words)
    found = json.loads(out.read_text())
    rows = {row["arm"]: row for row in found["rows"]}
    assert list(rows) == arms
    assert rows["SGD"]["guarantee"] == "none"
    paper = rows["z0 0.1"]
    assert paper["guarantee"] == "no meaningful guarantee"
    assert (paper["delta"], rows["each"]["delta"]) == (5e-4, 1e-6)
    assert all(stated < paper["log10_sound"] for stated in paper["log10_published"].values())
    for arm in ("N 16", "each", "constant, scaled"):
        assert 10 ** rows[arm]["log10_sound"] == pytest.approx(8, rel=0.02), arm
        assert not rows[arm]["guarantee"]
    assert rows["N 16"]["noise_multiplier"] == rows["each"]["noise_multiplier"]
    claims = found["claims"]["snips"]
    assert claims["no row of the paper's regime has a meaningful guarantee"]
    assert "epsilon 8: scales of layers help (constant)" not in claims, "its base is not among the arms"
    monkeypatch.setattr(table.Bench, "row", None)  # nothing is measured again
    table.main(words)
    assert json.loads(out.read_text()) == found


def test_conversations_are_units_and_falling_noise_costs_the_same(
    data: Path, tiny_bert: Path, one_thread: None
) -> None:
    import edpsgd_table as table
    from tag_corpora import multidogo

    corpus = multidogo(data)
    assert {row["conversation"] for row in corpus.private}.isdisjoint(row["conversation"] for row in corpus.test)
    assert any("B-arrival_city" in row["slots"] for row in corpus.private)
    given = table._arguments(_words(data, tiny_bert, "--corpora", "multidogo", "--arms", "linear, scaled"))
    (row,) = table.run(given)
    assert 10 ** row["log10_sound"] == pytest.approx(8, rel=0.02)
    assert 0 <= row["wrong_intents"] <= 1


def test_remembered_states_are_those_of_the_encoder(data: Path, tiny_bert: Path, one_thread: None) -> None:
    import torch
    from remembered import RememberedEncoder
    from transformers import BertModel

    encoder = BertModel.from_pretrained(tiny_bert).eval()
    remembered = RememberedEncoder(encoder)
    ids = torch.tensor([[2, 9, 8, 7, 3], [2, 5, 3, 0, 0]])
    mask = (torch.tensor([5, 3])[:, None] > torch.arange(5))[:, None, None].expand(2, 1, 5, 5)
    with torch.no_grad():
        there = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    first, other = remembered(ids, mask).last_hidden_state, remembered(ids[1:, :4], mask[1:, :, :4, :4])
    assert torch.allclose(first[0], there[0], atol=1e-6)
    assert torch.allclose(first[1, :3], there[1, :3], atol=1e-6)
    assert torch.equal(other.last_hidden_state[0, :3], first[1, :3])
    assert not first[1, 3:].any()
    assert not remembered(ids[:1], mask[:1]).last_hidden_state.requires_grad
