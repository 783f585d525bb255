"""Values of questions by actors: the same bits however many there are."""

import numpy as np
import pytest
from toy_questions import toy_values

from rayprivacy.questions.value import values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def test_one_actor_and_four_give_the_same_values():
    learning = toy_values(iterations=20, estimators=4).learning
    one, four, other = (values(learning, seed, actors) for seed, actors in ((3, 1), (3, 4), (4, 4)))
    assert one.tobytes() == four.tobytes()
    assert (one != other).any()
    np.testing.assert_allclose(values(learning, 3), one, atol=0.02)
