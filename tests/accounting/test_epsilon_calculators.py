"""The calculators of the command line: known figures, there and back, bad input in one sentence."""

import json
import math
import re

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from typer.testing import CliRunner

from rayprivacy.accounting.calibrate import least_sigma
from rayprivacy.accounting.decay import decayed
from rayprivacy.accounting.figures import figures
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.cli.epsilon import app
from rayprivacy.core.errors import ConfigError, RayPrivacyError

HUGE = "1" + "0" * 400
DPSGD = ("dpsgd", "--q", "0.01", "--steps", "1000", "--delta", "1e-5")
TWO = ("two-stage", "--q1", ".02", "--steps1", "500", "--q2", ".01", "--steps2", "1000", "--delta", "1e-5")
SELECT = ("select", *DPSGD[1:], "--trials", "10")
EDP = ("edpsgd", "--steps", "100", "--workers", "4")
SANTEXT = ("santext", "--tokens", "100", "--diameter", "1.5")


def _text(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _json(*arguments: str) -> dict[str, object]:
    parsed = json.loads(_text(*arguments, "--json"))
    assert isinstance(parsed, dict)
    return parsed


def test_gaussian_and_seqpate_print_what_the_manual_says() -> None:
    assert _text("gaussian", "--count", "100", "--sigma", "10").startswith("epsilon = 4.88655 at delta 1e-06\n")
    printed = _text("seqpate", "--queries", "1000", "--teachers", "1000", "--epsilon", "3")
    assert printed.startswith("sigma = 48.8212 per query; noise std 69.04 on the sum, 0.06904 on the mean\n")


def test_seqpate_for_phrases_needs_more_noise_and_says_what_a_user_has() -> None:
    base = ("seqpate", "--queries", "1000", "--teachers", "1000")
    user, phrase = _json(*base), _json(*base, "--shards-per-phrase", "4")
    assert phrase["noise"]["std_of_sum"] == pytest.approx(4 * user["noise"]["std_of_sum"])  # type: ignore[index]
    assert (user["unit"], phrase["unit"]) == ("user", "phrase")
    assert f"{epsilon_of(math.sqrt(1000) / (4 * user['noise']['sigma']), 1e-6):.6g}" in phrase["assumptions"][1]  # type: ignore[index]
    assert "as published" in _text(*base, "--sigma", "50", "--as-published")


def test_dpsgd_by_both_accountants_and_the_paper() -> None:
    printed = _text(*DPSGD, "--sigma", "1", "--as-published")
    assert printed.startswith("epsilon = 1.828")
    assert "rdp 2.101" in printed
    assert "as published" in printed
    assert "as published" not in _text(*DPSGD, "--sigma", "1")
    owner = _json(*DPSGD, "--sigma", "1", "--records-per-user", "5")
    assert owner["epsilon"] == pytest.approx(11.64, abs=0.05)
    assert owner["epsilon"] < owner["accountants"]["rdp"]  # type: ignore[index]


def test_bands_are_charged_as_fewer_steps_at_a_higher_rate() -> None:
    banded = _json("dpsgd", "--q", "0.05", "--steps", "200", "--sigma", "2", "--bands", "8")
    plain = _json("dpsgd", "--q", "0.4", "--steps", "25", "--sigma", "2")
    assert (banded["epsilon"], banded["accountants"]) == (plain["epsilon"], plain["accountants"])
    printed = [_text("dpsgd", "--q", "0.05", "--steps", "200", "--epsilon", "8", "--bands", b) for b in ("1", "8")]
    errors = [float(re.search(r"root mean square over the steps: ([\d.]+)", text)[1]) for text in printed]  # type: ignore[index]
    assert errors[1] < 0.8 * errors[0]
    assert "hashed into 8 groups" in printed[1]


def test_two_stages_compose() -> None:
    printed = _text(*TWO, "--sigma1", ".9", "--sigma2", ".9", "--as-published")
    assert printed.startswith("epsilon = 4.15")
    for figure in ("stage 1 alone 3.50", "stage 2 alone 2.31", "rdp 4.66", "as published: stage 2 alone"):
        assert figure in printed


def test_select_stands_beside_paying_for_all() -> None:
    for distribution in ("geometric", "poisson", "logarithmic"):
        found = _json(*SELECT, "--sigma", "1", "--distribution", distribution, "--as-published")
        assert 3.4 < found["epsilon"] < 4.4  # type: ignore[operator]
        assert found["published"][0]["epsilon"] == pytest.approx(1.828, abs=2e-3)  # type: ignore[index]
    assert "paying for all of 10 runs 6." in _text(*SELECT, "--sigma", "1")


def test_edpsgd_has_less_noise_than_printed() -> None:
    found = _json(*EDP, "--z0", "8", "--as-published")
    assert found["noise"] == {"z0": 8.0, "effective": 2.0, "effective_last": 2.0}
    assert found["epsilon"] == pytest.approx(epsilon_of(10 / 2, 1e-6))
    assert found["published"][0]["epsilon"] < found["epsilon"] / 4  # type: ignore[index,operator]
    assert _json(*EDP, "--z0", "8", "--per-worker", "sqrt-n")["noise"]["effective"] == 4.0  # type: ignore[index]
    assert _json(*EDP, "--z0", "8", "--micro-batches", "4")["noise"]["effective"] == 1.0  # type: ignore[index]
    decayed_run, sampled = _json(*EDP, "--z0", "8", "--decay", ".99"), _json(*EDP, "--z0", "8", "--q", "0.01")
    assert decayed_run["noise"]["effective"] == 2.0, "of the first step, whatever comes after"  # type: ignore[index]
    mu = math.sqrt(sum((2 * 0.99**t) ** -2 for t in range(100)))
    assert decayed_run["epsilon"] == pytest.approx(epsilon_of(mu, 1e-6), rel=1e-9)
    assert sampled["epsilon"] < found["epsilon"]  # type: ignore[operator]
    assert set(sampled["accountants"]) == {"pld", "rdp"}  # type: ignore[call-overload]


def test_schedules_in_levels_are_upper_bounds_of_every_step() -> None:
    schedule = NoiseSchedule("exponential", 0.001)
    fine, coarse = decayed(8.0, schedule, 1000, 1, levels=1000), decayed(8.0, schedule, 1000, 1)
    assert sum(times for _, times in coarse) == sum(times for _, times in fine) == 1000
    steps = [sigma for sigma, times in coarse for _ in range(times)]
    assert all(level <= sigma * (1 + 1e-12) for level, (sigma, _) in zip(steps, fine, strict=True))


def test_edpsgd_as_the_paper_prints_it_and_as_it_is() -> None:
    paper = ("edpsgd", "--z0", "1", "--steps", "100", "--workers", "8", "--delta", "5e-4")
    found = _json(*paper, "--as-published")
    assert found["epsilon"] == pytest.approx(1785.17, abs=0.01)
    assert [figure["epsilon"] for figure in found["published"]] == pytest.approx([89.0, 88.99], abs=0.01)  # type: ignore[index]
    assert _json(*paper, "--per-worker", "sqrt-n")["epsilon"] == pytest.approx(264.885, abs=1e-3)
    halved = _json(*paper, "--max-scale", "2")["noise"]
    assert halved["effective"] == found["noise"]["effective"] / 2  # type: ignore[index]
    assert "no meaningful guarantee" in _text(*paper)


def test_edpsgd_by_epoch_is_the_composed_events() -> None:
    run = ("--z0", "6", "--steps", "100", "--workers", "8", "--per-worker", "sqrt-n", "--q", ".05")
    found = _json("edpsgd", *run, "--schedule", "linear", "--tau", ".1", "--steps-per-epoch", "50", "--as-published")
    by_hand = [(PoissonSampledDpEvent(0.05, GaussianDpEvent(3 / (1 + 0.1 * epoch))), 50) for epoch in range(2)]
    assert found["accountants"] == pytest.approx(figures(by_hand, 1e-6).by, rel=1e-6)
    assert found["noise"]["effective_last"] == 3 / 1.1  # type: ignore[index]
    rho = 0.5 / 36 + 0.5 / (6 / 1.1) ** 2
    by_epoch = rho + 2 * math.sqrt(rho * math.log(1e6))
    assert found["published"][1]["epsilon"] == pytest.approx(by_epoch)  # type: ignore[index]
    short = _json(*EDP, "--z0", "8", "--decay", "0.5")
    assert short == _json(*EDP, "--z0", "8", "--schedule", "exponential", "--tau", repr(math.log(2)))


def test_santext_prices_a_document() -> None:
    printed = _text(*SANTEXT, "--epsilon", "2", "--as-published")
    assert printed.startswith("epsilon = 300 per document")
    assert "no meaningful guarantee" in printed
    assert "per token and unit of distance only: 2" in printed
    back = _json(*SANTEXT, "--document-epsilon", "30")
    assert (back["epsilon"], back["delta"]) == (pytest.approx(30), None)
    assert back["noise"]["epsilon_per_token"] == pytest.approx(0.2)  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "option", "name"),
    [
        (("gaussian", "--count", "100"), "--sigma", "sigma"),
        (("seqpate", "--queries", "100", "--teachers", "9"), "--sigma", "sigma"),
        (DPSGD, "--sigma", "sigma"),
        (SELECT, "--sigma", "sigma"),
        (EDP, "--z0", "z0"),
        ((*EDP, "--q", ".05", "--schedule", "linear", "--tau", ".5", "--steps-per-epoch", "50"), "--z0", "z0"),
    ],
)
def test_from_epsilon_to_noise_and_back(arguments: tuple[str, ...], option: str, name: str) -> None:
    noise = _json(*arguments, "--epsilon", "2.5")["noise"][name]  # type: ignore[index]
    back = _json(*arguments, option, repr(noise))["epsilon"]
    assert 2.5 * (1 - 1e-3) <= back <= 2.5 * (1 + 1e-8)  # type: ignore[operator]


def test_one_multiplier_for_both_stages() -> None:
    found = _json(*TWO, "--epsilon", "3")
    assert 2.99 < found["epsilon"] <= 3.0  # type: ignore[operator]
    assert found["noise"]["sigma1"] == found["noise"]["sigma2"]  # type: ignore[index]


def test_little_noise_falls_back_on_renyi_orders_and_says_so() -> None:
    printed = _text(*DPSGD, "--sigma", "0.04")
    assert "no pld figure" in printed
    assert "no meaningful guarantee" in printed
    assert set(_json(*DPSGD, "--sigma", "1e-60")["accountants"]) == {"rdp"}  # type: ignore[call-overload]
    assert set(_json("dpsgd", "--q", ".5", "--sigma", "1e90", "--steps", str(2**53))["accountants"]) == {"rdp"}  # type: ignore[call-overload]


BAD = [
    *(("gaussian", "--count", "3", "--sigma", bad) for bad in ("nan", "inf", "0", "-1")),
    *(("gaussian", "--sigma", "1", "--count", bad) for bad in ("0", "-1", HUGE, str(2**53 + 1))),
    *(("gaussian", "--sigma", "1", "--delta", bad) for bad in ("0", "1", "nan", "-1")),
    *(("gaussian", "--epsilon", bad) for bad in ("0", "nan", "inf", "-1")),
    ("gaussian",),
    ("gaussian", "--sigma", "1", "--epsilon", "1"),
    ("seqpate", "--queries", HUGE, "--teachers", "1"),
    ("seqpate", "--queries", "1", "--teachers", "0"),
    ("seqpate", "--queries", "1", "--teachers", "1", "--shards-per-phrase", "0"),
    *(("dpsgd", "--steps", "10", "--sigma", "1", "--q", bad) for bad in ("0", "1.01", "nan", "-1")),
    *(("dpsgd", "--q", ".1", "--sigma", "1", "--steps", bad) for bad in ("0", "-5", HUGE)),
    *((*DPSGD, "--epsilon", bad) for bad in ("nan", "inf", "0")),
    *((*DPSGD, "--sigma", bad) for bad in ("nan", "inf", "0")),
    *((*DPSGD, "--sigma", "1", "--delta", bad) for bad in ("0", "1", "nan")),
    *((*DPSGD, "--sigma", "1", "--records-per-user", bad) for bad in ("0", "1000", HUGE)),
    *((*DPSGD, "--sigma", "1", "--bands", bad) for bad in ("0", "-1", "3", "200", HUGE)),
    (*DPSGD, "--sigma", "1", "--bands", "2", "--records-per-user", "2"),
    ("dpsgd", "--q", ".1", "--sigma", "1", "--steps", "200000", "--bands", "2"),
    DPSGD,
    (*TWO, "--sigma1", "1"),
    (*TWO, "--sigma1", "1", "--sigma2", "nan"),
    (*TWO, "--sigma1", "1", "--sigma2", "1", "--epsilon", "1"),
    *((*SELECT[:-1], bad, "--sigma", "1") for bad in ("1", "nan", "inf", "1e6")),
    (*SELECT, "--sigma", "1", "--shape", "2"),
    (*SELECT, "--sigma", "1", "--distribution", "negative-binomial"),
    (*SELECT, "--sigma", "1", "--distribution", "negative-binomial", "--shape", "nan"),
    *((*EDP, "--z0", bad) for bad in ("nan", "0")),
    *((*EDP, "--z0", "1", "--decay", bad) for bad in ("nan", "0", "1.1", "1e-300")),
    *((*EDP, "--z0", "1", "--schedule", "linear", *bad) for bad in ((), ("--tau", "0"), ("--tau", "nan"))),
    (*EDP, "--z0", "1", "--tau", "1"),
    (*EDP, "--z0", "1", "--decay", ".9", "--schedule", "linear", "--tau", "1"),
    (*EDP, "--z0", "1", "--steps-per-epoch", "0"),
    *((*EDP, "--z0", "1", "--max-scale", bad) for bad in ("0", "nan", "inf")),
    ("edpsgd", "--steps", HUGE, "--workers", "4", "--z0", "1"),
    ("edpsgd", "--steps", "10", "--workers", "0", "--z0", "1"),
    ("edpsgd", "--steps", "10", "--workers", str(2**53), "--micro-batches", str(2**53), "--z0", "1"),
    ("santext", "--tokens", HUGE, "--diameter", "1", "--epsilon", "1"),
    ("santext", "--tokens", "1", "--diameter", "nan", "--epsilon", "1"),
    ("santext", "--tokens", "1", "--diameter", "1", "--epsilon", "inf"),
    ("santext", "--tokens", "1", "--diameter", "1"),
    (*DPSGD, "--sigma", "1", "--bands", "8", "--as-published"),
]


def test_santext_names_the_two_options_of_which_it_wants_one() -> None:
    error = CliRunner().invoke(app, ("santext", "--tokens", "1", "--diameter", "1")).exception
    assert str(error) == "give either --epsilon or --document-epsilon, and not both."


@pytest.mark.parametrize("arguments", BAD, ids=lambda arguments: " ".join(arguments)[:60])
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, RayPrivacyError)
    assert error.exit_code == 2
    message = str(error)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 250


def test_calibration_rounds_up_and_knows_its_range() -> None:
    for wanted in (1e-6, 0.37, 5.0, 900.0):
        sigma = least_sigma(lambda s: 1 / s, wanted)
        assert 1 / wanted <= sigma <= 1 / wanted * (1 + 2.1e-4)
    for epsilon, cost in (
        (1.0, lambda s: 2.0),
        (1.0, lambda s: 0.0),
        (math.nan, lambda s: 1 / s),
        (0.0, lambda s: 1 / s),
    ):
        for start in (1.0, 1e9 / 4, 1e9):
            with pytest.raises(ConfigError, match="epsilon is"):
                least_sigma(cost, epsilon, start)
            with pytest.raises(ConfigError, match="epsilon is"):
                least_sigma(cost, epsilon, start, guess=lambda s: 1 / s)


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 3.0, 900.0])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("low", [0.0, 1e-2, 3.0])
def test_a_guess_saves_costs_and_leaves_the_noise_as_it_is(power: float, epsilon: float, low: float) -> None:
    """Guesses that are good, 40 times too high or low, or fall by another power; costs without a figure below some."""
    asked: list[float] = []

    def cost(sigma: float) -> float:
        asked.append(sigma)
        return 40 / sigma**power + 0.3 / sigma if sigma > low else math.inf

    found = least_sigma(cost, epsilon)
    without = len(asked)
    for guess, most in (
        (lambda s: 40 / s**power, 10),
        (lambda s: 1 / s**power, 12),
        (lambda s: 1600 / s**1.2, 18),
        (lambda s: 5.0, 30),
    ):
        asked.clear()
        assert least_sigma(cost, epsilon, guess=guess) == found
        assert len(asked) <= (most if low == 0 else without + 10)
