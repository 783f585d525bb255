"""Plans: read from files that may hold anything, flattened without order, and covering only what costs no more."""

from pathlib import Path

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent

from rayprivacy.accounting.accountant import dominates, epsilon, plan_epsilon, plan_lines, read_plan
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import ConfigError, EventError

GAUSS = dpa.GaussianDpEvent


def _sampled(q: float, sigma: float) -> DpEvent:
    return dpa.PoissonSampledDpEvent(q, GAUSS(sigma))


def test_a_plan_is_yaml_or_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "- {kind: self-composed, count: 10, event: {kind: gaussian, noise_multiplier: 40.0}}\n"
        "- kind: poisson-sampled-gaussian\n  sampling_probability: 0.01\n  noise_multiplier: 1\n"
    )
    assert read_plan(path) == (dpa.SelfComposedDpEvent(GAUSS(40.0), 10), _sampled(0.01, 1.0))
    path.write_text('[{"kind": "laplace", "noise_multiplier": 2.0}]')
    assert read_plan(str(path)) == (dpa.LaplaceDpEvent(2.0),)
    for none in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_plan(none)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"kind: gaussian", b"- gaussian", b"\x00", b"\xff\xfe\x00[", b"\xff not utf-8", b"[" * 100_000),
        *(b"- !!python/object:os.system {}", b"- 2026-99-99", b"- {[1]: 2}", b"- &a [*a]"),
        b"- {kind: gaussian, noise_multiplier: .nan}",
        b"- {kind: gaussian, noise_multiplier: 2.0, extra: 1}",
        b"- {kind: gaussian, noise_multiplier: " + b"9" * 5000 + b"}",
    ],
)
def test_a_malformed_plan_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="plan is") as raised:
        read_plan(path)
    assert "\n" not in str(raised.value)


def test_lines_are_merged_in_one_order() -> None:
    events = [dpa.ComposedDpEvent([_sampled(0.1, 2.0), GAUSS(3.0)]), dpa.SelfComposedDpEvent(GAUSS(3), 4), GAUSS(5.0)]
    lines = plan_lines(events)
    assert dict(lines) == {GAUSS(3.0): 5, GAUSS(5.0): 1, _sampled(0.1, 2.0): 1}
    assert lines == plan_lines(list(reversed(events)))
    assert plan_lines([]) == ()


MIXTURE = MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.9, 0.1))
WINNER = RepeatAndSelectDpEvent(GAUSS(1.0), 10.0, 1.0)
LINES = [
    (GAUSS(2.0), GAUSS(2.0), True),
    (GAUSS(2.0), GAUSS(1.999), False),
    (GAUSS(2.0), _sampled(0.9, 2.0), True),
    (GAUSS(2.0), _sampled(0.001, 1.9), False),
    (_sampled(0.1, 2.0), _sampled(0.1, 2.5), True),
    (_sampled(0.1, 2.0), _sampled(0.11, 2.5), False),
    (_sampled(0.1, 2.0), _sampled(0.05, 1.5), False),
    (_sampled(0.1, 2.0), GAUSS(100.0), False),
    (_sampled(1.0, 2.0), GAUSS(2.0), True),
    (dpa.LaplaceDpEvent(1.0), dpa.LaplaceDpEvent(1.0), True),
    (dpa.LaplaceDpEvent(1.0), dpa.LaplaceDpEvent(0.9), False),
    (GAUSS(0.1), dpa.LaplaceDpEvent(100.0), False),
    (dpa.LaplaceDpEvent(0.1), GAUSS(100.0), False),
    (MIXTURE, MIXTURE, True),
    (MIXTURE, MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.9, 0.1]), True),
    (MIXTURE, MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0), (0.9, 0.1)), False),
    (GAUSS(0.1), MIXTURE, False),
    (WINNER, WINNER, True),
    (WINNER, GAUSS(1.0), False),
    (WINNER, RepeatAndSelectDpEvent(GAUSS(2.0), 10.0, 1.0), False),
    (MetricLocalDpEvent(1.0, 1.0, 1), MetricLocalDpEvent(1.0, 1.0, 1), False),
    (dpa.NonPrivateDpEvent(), dpa.NonPrivateDpEvent(), True),
    (GAUSS(0.1), dpa.NonPrivateDpEvent(), False),
]


@pytest.mark.parametrize(("line", "leaf", "covered"), LINES)
def test_a_line_covers_what_costs_no_more(line: DpEvent, leaf: DpEvent, covered: bool) -> None:
    assert dominates(line, leaf) is covered
    for pair in ((line, GAUSS(float("nan"))), (GAUSS(float("nan")), leaf)):  # no event at all
        with pytest.raises(EventError):
            dominates(*pair)


@pytest.mark.parametrize(("line", "leaf"), [(line, leaf) for line, leaf, covered in LINES[:12] if covered])
def test_what_a_line_covers_costs_no_more_alone_and_composed(line: DpEvent, leaf: DpEvent) -> None:
    for times, delta in ((1, 1e-6), (30, 1e-3)):
        assert plan_epsilon([(leaf, times)], delta) <= plan_epsilon([(line, times)], delta) * (1 + 1e-4)


def test_the_epsilon_of_a_plan_is_that_of_its_events() -> None:
    plan = [dpa.SelfComposedDpEvent(_sampled(0.02, 0.9), 500), dpa.SelfComposedDpEvent(_sampled(0.01, 0.9), 1000)]
    assert plan_epsilon(plan_lines(plan), 1e-5) == pytest.approx(4.15, abs=0.01)
    assert plan_epsilon(plan_lines(plan), 1e-5) == pytest.approx(epsilon(plan, 1e-5, "pld"), rel=1e-9)
    assert plan_epsilon((), 1e-5) == 0
    with pytest.raises(EventError, match="use 'rdp'"):
        plan_epsilon([(WINNER, 1)], 1e-5)
