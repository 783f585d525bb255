"""What `rayprivacy run` says at its end: figures of what the method releases, and where it is."""

import pytest
from run_directory import certificate, metrics

from rayprivacy.cli import runs
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.registry import method_named, method_names

RATES = {"base": 0.912, "edp_sgd": 0.254}
TAGGED = {"releasable": False, "semantic_error_rate": RATES, "wrong_intents": {"base": 1.0, "edp_sgd": 0.131}}


@pytest.fixture
def said(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")

    def say(heldout, method="seqpate"):
        card = method_named(method).card
        runs._summary("runs/mine/", Certificate.model_validate(certificate()), heldout, card)
        return " ".join(capsys.readouterr().out.translate(dict.fromkeys(map(ord, "│┃"), " ")).split())

    return say


def test_a_tagger_is_told_by_its_errors_and_by_the_model_that_is_released(said):
    shown = said(TAGGED, "edp_sgd")
    assert "tagger semantic error rate wrong intents" in shown
    assert "edp_sgd 25.4% 13.1%" in shown
    assert "internal: measured on private text" in shown
    assert "model runs/mine/model certificate runs/mine/certificate.md" in shown
    assert "perplexity" not in shown
    assert "synthetic" not in shown


def test_text_is_told_by_perplexities_and_by_its_file_and_a_public_log_has_no_figure(said):
    heldout = metrics()["heldout"]
    shown = said(heldout)
    for name, value in heldout["perplexity"].items():
        assert f"{name} {value:.1f}" in shown
    assert "synthetic text runs/mine/synthetic.parquet" in shown
    assert "semantic error rate" not in shown
    assert "internal" not in said({})


def test_a_profile_is_told_by_its_file(said):
    shown = said({}, "profile")
    assert "profile runs/mine/profile.json certificate runs/mine/certificate.md" in shown
    assert "model" not in shown


def test_every_method_releases_what_the_console_can_name():
    assert all(method_named(name).card.released_files for name in method_names())
