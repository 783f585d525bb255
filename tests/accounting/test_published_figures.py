"""The papers' own figures: what they leave out shows."""

import math

import dp_accounting as dpa
import pytest
from dp_accounting.rdp import RdpAccountant

from rayprivacy.accounting import published
from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.gaussian import epsilon_of

STEP = dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0))


def test_seqpate_is_the_best_real_order_and_above_ours() -> None:
    found = published.votes_as_published("SeqPATE (2022)", 1000, 50.0, 1e-6).epsilon
    grid = (1 + 10 ** (k / 1000) for k in range(-3000, 4000))
    assert found == pytest.approx(min(1000 * a / 5000 + math.log(1e6) / (a - 1) for a in grid), rel=1e-5)
    assert found > epsilon_of(math.sqrt(1000) / 50.0, 1e-6)


def test_dpsgd_is_the_classic_conversion() -> None:
    accountant = RdpAccountant().compose(STEP, 1000)
    classic = min(accountant.rdp + math.log(1e5) / (accountant.orders - 1))
    assert published.dpsgd(STEP, 1000, 1e-5).epsilon == pytest.approx(classic, rel=1e-4)
    assert classic > epsilon([dpa.SelfComposedDpEvent(STEP, 1000)], 1e-5, "rdp")


def test_stages_alone_and_noise_as_printed() -> None:
    alone = published.two_stage([(STEP, 500), (STEP, 1000)], 1e-5)
    assert [figure.label[-7:] for figure in alone] == ["1 alone", "2 alone"]
    assert alone[0].epsilon < alone[1].epsilon == published.dpsgd(STEP, 1000, 1e-5).epsilon
    assert published.edpsgd([(STEP, 500), (STEP, 500)], 1e-5).epsilon == pytest.approx(alone[1].epsilon)
    assert published.santext(2.0).epsilon == published.select(2.0).epsilon == 2.0


def test_every_label_says_as_published() -> None:
    figures = [
        published.votes_as_published("SeqPATE (2022)", 1, 1.0, 1e-6),
        published.dpsgd(STEP, 1, 1e-6),
        published.edpsgd([(STEP, 1)], 1e-6),
        published.edpsgd_by_zcdp(0.5, 1e-6),
    ]
    for figure in [*figures, published.santext(1.0), published.select(1.0), *published.two_stage([(STEP, 1)], 1e-6)]:
        assert "as published" in figure.label or "as usually published" in figure.label
