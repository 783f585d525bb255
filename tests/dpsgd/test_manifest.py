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


def test_replicated_ranks_hold_everything_each() -> None:
    for ranks in (PARTS, [WHOLE, WHOLE[:1]], [WHOLE, WHOLE * 2], [WHOLE, []], [[], []]):
        with pytest.raises(ReleaseError, match="parameter"):
            check_manifest(SIZES, ranks, replicated=True)
    with pytest.raises(ReleaseError, match="twice"):
        check_manifest(SIZES, [WHOLE, WHOLE], replicated=False)


@pytest.mark.parametrize("replicated", [True, False])
def test_a_manifest_without_ranks_is_refused(replicated: bool) -> None:
    with pytest.raises(ReleaseError, match="0 ranks"):
        check_manifest(SIZES, [], replicated)


def test_the_fragments_of_a_good_manifest_make_up_the_whole_noise() -> None:
    noise = KeyedNoise(Key.for_tests(), "run")
    check_manifest(SIZES, PARTS, replicated=False)
    for name, size in SIZES.items():
        vector = torch.zeros(size)
        for fragment in (fragment for rank in PARTS for fragment in rank if fragment.name == name):
            place = slice(fragment.start, fragment.start + fragment.count)
            vector[place] += noise.normal(0, name, fragment.start, fragment.count)
        assert torch.equal(vector, noise.normal(0, name, 0, size))
