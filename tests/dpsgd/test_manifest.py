"""Every coordinate is noised exactly once, or the manifest is refused."""

import pytest
import torch

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.engines.state import Fragment, check_manifest
from rayprivacy.dpsgd.noise import KeyedNoise

SIZES = {"weight": 10, "bias": 3}
WHOLE = [Fragment("weight", 0, 10), Fragment("bias", 0, 3)]
PARTS = [
    [Fragment("weight", 4, 6), Fragment("bias", 0, 1)],
    [Fragment("bias", 1, 2)],
    [Fragment("weight", 0, 4), Fragment("bias", 2, 0)],
    [],
]


def test_complete_manifests_pass() -> None:
    check_manifest(SIZES, PARTS, replicated=False)
    check_manifest(SIZES, PARTS[::-1], replicated=False)
    check_manifest(SIZES, [WHOLE], replicated=False)
    check_manifest(SIZES, [WHOLE, WHOLE[::-1], PARTS[0] + PARTS[1] + PARTS[2]], replicated=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([Fragment("weight", 0, 3)], "coordinate 3 of parameter 'weight'"),
        ([Fragment("weight", 1, 3)], "coordinate 0 of parameter 'weight'"),
        ([], "coordinate 0 of parameter 'weight'"),
        ([Fragment("weight", 0, 5)], "coordinate 4 of parameter 'weight' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("weight", 9, 1)], "coordinate 9 of parameter 'weight' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("weight", 0, 4)], "coordinate 0 of parameter 'weight' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("bias", 2, 1)], "coordinate 2 of parameter 'bias' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("bias", 3, 1)], r"\[3, 4\) of parameter 'bias' is outside \[0, 3\)"),
        ([Fragment("weight", -1, 5)], r"\[-1, 4\) of parameter 'weight' is outside"),
        ([Fragment("weight", 0, 4), Fragment("weight", 4, -2)], "is outside"),
        ([Fragment("weight", 0, 4), Fragment("head", 0, 1)], "'head', which is not trainable"),
    ],
)
def test_what_is_missing_doubled_unknown_or_out_of_range_is_refused(change: list[Fragment], message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        check_manifest(SIZES, [*PARTS[:2], change, []], replicated=False)


def test_replicated_ranks_hold_everything_each_and_others_nothing_twice() -> None:
    for ranks in (PARTS, [WHOLE, WHOLE[:1]], [WHOLE, WHOLE * 2], [WHOLE, []], [[], []]):
        with pytest.raises(ReleaseError, match="parameter"):
            check_manifest(SIZES, ranks, replicated=True)
    for ranks, replicated, said in (([WHOLE, WHOLE], False, "twice"), ([], True, "0 ranks"), ([], False, "0 ranks")):
        with pytest.raises(ReleaseError, match=said):
            check_manifest(SIZES, ranks, replicated)


def test_the_fragments_of_a_good_manifest_make_up_the_whole_noise() -> None:
    noise = KeyedNoise(Key.for_tests(), "run")
    for name, size in SIZES.items():
        vector = torch.zeros(size)
        for held in (held for rank in PARTS for held in rank if held.name == name):
            vector[held.start : held.start + held.count] += noise.normal(0, name, held.start, held.count)
        assert torch.equal(vector, noise.normal(0, name, 0, size))
