"""Steps without noise read redacted copies alone, on every engine."""

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import ADAM, BATCH, EXHAUSTIVE, RATE, SGD, Case, engines, refused, taken
from rank_processes import Ranks

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.units import Reading
from rayprivacy.release.step_mechanism import NoisySteps

LISTED = (True, False, True, False)
SPLITS = ((5, 4), (4, 5), (9, 0), (3, 2))
pytestmark = pytest.mark.usefixtures("one_thread")


def _case(zero: int | None, **more: object) -> Case:
    return replace(Case("gpt2", zero, splits=SPLITS, sigma=1.0, optimizer=ADAM, redacted=LISTED), **more)


@engines("plain")
def test_full_text_in_a_step_without_noise_is_refused(pair: Ranks, zero: int | None, offload: bool) -> None:
    """Both ranks are, where one alone holds units in that step."""
    case = _case(zero, full=(1, 2, 3))
    told = pair.run(refused, replace(case, splits=SPLITS[:3]))
    assert all(each.startswith("ReleaseError: step 2 is a redacted one and was given full text") for each in told)
    assert pair.run(refused, replace(case, splits=SPLITS[:2])) == ["", ""]


def test_one_full_document_among_redacted_ones_is_enough() -> None:
    full, hidden = (Document(np.array([0, 5, 6], dtype=np.int32), 1, redacted) for redacted in (False, True))
    for units, redacted in (([[hidden], [hidden]], True), ([[full], [hidden]], False), ([[full, hidden]], False)):
        assert [batch.redacted for batch in physical_batches(units, 64, 0)] == [redacted]


def test_an_empty_step_has_read_nothing() -> None:
    assert refused(_case(None, splits=((9,),), full=(0,)))
    assert not refused(_case(None, splits=((9,),)))
    assert not refused(_case(None, splits=((0,),), full=(0,)))


def test_other_mechanisms_leave_noise_out_of_no_step() -> None:
    assert NoisySteps(0.5, 1.0, 1.0, 4).redacted_steps == frozenset()
    assert NoisySteps(0.5, 1.0, 1.0, 4, redacted=LISTED, policy="p").redacted_steps == {0, 2}


READING = Reading(
    PrivacyUnit.USER, (), str, 8, versions=2, version_of=[0, 1, 0, 1].__getitem__, redacted=frozenset({0})
)


def test_a_reading_that_does_not_follow_the_charged_schedule_is_refused() -> None:
    READING.check(4, frozenset({0, 2}))
    for reading, free, said in (
        (replace(READING, version_of=lambda _: 1), {0, 2}, "step 0 is a redacted one and would read full text"),
        (READING, {0}, "step 2 is charged and reads redacted text"),
        (READING, set(), "step 0 is charged and reads redacted text"),
        (replace(READING, redacted=frozenset()), {0, 2}, "step 0 is a redacted one and would read full text"),
    ):
        with pytest.raises(ReleaseError, match=said):
            reading.check(4, frozenset(free))


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=EXHAUSTIVE)])
@engines("plain", "zero3")
def test_a_unit_that_is_absent_from_a_noisy_step_moves_it_by_the_norm(
    pair: Ranks, zero: int | None, offload: bool, half: bool
) -> None:
    """Step 0 reads the redacted copies of all nine, and step 1 the full text of nine or of eight."""
    with_it, without = (
        pair.run(taken, _case(zero, optimizer=SGD, splits=((5, 4), (5, held)), half=half))[0] for held in (4, 3)
    )
    moved = sum(((with_it[name].astype(float) - without[name]) ** 2).sum() for name in with_it)
    assert 0.1 < np.sqrt(moved) * BATCH / RATE <= 1 + 1e-3
