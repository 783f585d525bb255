"""What is mapped over parts comes back for each of them once, or nothing is released."""

import pytest

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.private import Seal
from rayprivacy.work.mapping import each_once

SEAL = Seal(ReleaseError, "nothing was charged for it, run again with --resume")


def test_what_comes_for_each_number_is_passed_on_in_its_order():
    assert [*each_once([(2, "b"), (0, "a")], [0, 2], "adding up", SEAL)] == [(2, "b"), (0, "a")]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([(0, 1), (2, 1), (0, 1)], "adding up came to number 0 twice, or unasked"),
        ([(0, 1), (7, 1), (2, 1)], "adding up came to number 7 twice, or unasked"),
        ([(2, 1)], "adding up came to nothing for 1 of its numbers"),
        ([], "adding up came to nothing for 2 of its numbers"),
    ],
)
def test_a_part_twice_or_not_at_all_ends_the_work(found, said):
    """Added up twice, a user's texts would move a released sum by twice what was charged."""
    with pytest.raises(ReleaseError, match=f"^{said}: nothing was charged"):
        list(each_once(found, [0, 2], "adding up", SEAL))
