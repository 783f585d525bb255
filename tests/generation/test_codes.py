"""Control codes: every record has a cell, every cell a code and labels, and shares become counts."""

import time
from typing import Any

import numpy as np
import pytest

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.private import digest_json, digest_json_list
from rayprivacy.generation.codes import CodedPrompts, Codes, CodesConfig
from rayprivacy.release.histogram import MAX_CELLS

VALUES = {"topic": ("Mozart or Beethoven?", "What if pigs could fly?"), "stars": ("1.0", "5.0", "other")}
CODES = Codes(CodesConfig(values=VALUES), ("topic", "stars"))


def test_cells_and_labels_are_each_others_inverse() -> None:
    assert CODES.cells == 3 * 3
    labels = [CODES.labels(cell) for cell in range(CODES.cells)]
    assert [CODES.index(values) for values in labels] == list(range(CODES.cells))
    assert len({tuple(values.items()) for values in labels}) == CODES.cells
    assert labels[1] == {"topic": "Mozart or Beethoven?", "stars": "5.0"}
    assert labels[-1] == {"topic": "other", "stars": "other"}
    assert Codes(CodesConfig(values={"stars": ("other", "1")}), ("stars",)).cells == 2, "other is not doubled"
    none = Codes(CodesConfig(), ())
    assert (none.cells, none.index({}), none.text(0), none.labels(0)) == (1, 0, "", {})
    assert none.draw(none.uniform, 3, 0) == [0, 0, 0]


@pytest.mark.parametrize("unlisted", [{"topic": "my own secret"}, {"topic": None}, {"topic": ""}, {}, {"mood": "sad"}])
def test_what_is_not_on_the_public_list_is_other(unlisted: dict[str, str | None]) -> None:
    assert CODES.labels(CODES.index(unlisted | {"stars": "5.0"})) == {"topic": "other", "stars": "5.0"}


def test_a_code_is_one_line_that_names_every_label() -> None:
    cell = CODES.index({"topic": "Mozart or Beethoven?", "stars": "5.0"})
    assert CODES.text(cell) == "topic: Mozart or Beethoven? | stars: 5.0\n"
    assert len({CODES.text(cell) for cell in range(CODES.cells)}) == CODES.cells
    assert all(CODES.text(cell).count("\n") == 1 for cell in range(CODES.cells))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"values": {"stars": ()}}, "'stars' has an empty list"),
        ({"values": {"stars": ("1", "1")}}, "'stars' has a value twice"),
        ({"values": {"stars": ("1\n",)}}, "'stars' has a value of several lines"),
        ({"values": {"stars": (1, 2)}}, "valid string"),
        *(({"noise_multiplier": sigma}, "noise_multiplier") for sigma in (0, -1, float("nan"), float("inf"))),
        ({}, "no list for label 'stars': add its public values"),
        ({"values": VALUES | {"stars": ("1",), "mood": ("sad",)}}, "a list for 'mood', which is none of corpus.labels"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Codes(CodesConfig.parse({"values": {"topic": ("a",)}} | keys), ("topic", "stars"))


def test_too_many_combinations_are_refused_at_once() -> None:
    many = {"zip": tuple(map(str, range(10_000)))}
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"10,001 combinations of labels.*1,000 are taken: choose fewer"):
        Codes(CodesConfig(values=many), ("zip",))
    with pytest.raises(ConfigError, match="1,002,001 combinations"):
        Codes(CodesConfig(values=dict.fromkeys("ab", tuple(map(str, range(1000))))), ("a", "b"))
    assert time.process_time() - start < 1
    assert Codes(CodesConfig(values={"zip": tuple(map(str, range(MAX_CELLS - 1)))}), ("zip",)).cells == MAX_CELLS


def _counts(shares: list[float], n: int) -> list[int]:
    codes = Codes(CodesConfig(values={"x": tuple(map(str, range(len(shares) - 1)))}), ("x",))
    return np.bincount(codes.draw(np.array(shares), n, 0), minlength=len(shares)).tolist()


def test_counts_are_the_largest_remainders_and_an_empty_cell_stays_empty() -> None:
    assert _counts([0.55, 0.25, 0.2], 10) == [6, 2, 2]
    assert _counts([1 / 3, 1 / 3, 1 / 3], 2) == [1, 1, 0]
    assert _counts([0.2, 0.8], 0) == [0, 0]
    assert _counts([1.0, 3.0], 8) == [2, 6]
    chance = np.random.default_rng(1)
    for n in (1, 10, 997, 100_000):
        shares = chance.dirichlet(np.full(50, 0.1)) * (chance.random(50) > 0.3)
        shares /= shares.sum()
        counts = np.array(_counts(shares.tolist(), n))
        assert counts.sum() == n
        assert np.abs(counts - n * shares).max() < 1
        assert not counts[shares == 0].any()


def test_the_seed_decides_the_order_and_nothing_else() -> None:
    shares = np.arange(1.0, 10.0)
    first, again, other = (CODES.draw(shares, 500, seed) for seed in (3, 3, 4))
    assert again == first != other
    assert sorted(other) == sorted(first) != first
    assert all(type(cell) is int for cell in first)
    with pytest.raises(ReleaseError, match="8 shares for 9 codes"):
        CODES.draw(np.ones(8), 3, 0)


def test_prompts_of_cells_are_made_when_they_are_asked_for() -> None:
    codes = Codes(CodesConfig(values={"topic": ("trains", "soup")}), ("topic",))
    cells = codes.draw(codes.uniform, 11, 0)
    lazy, whole = CodedPrompts(cells, codes), [(cell, codes.text(cell)) for cell in cells]
    assert [*lazy, *lazy[3:8], lazy[-1]] == [*whole, *whole[3:8], whole[-1]]
    assert len(lazy) == 11
    assert digest_json_list("model", lazy) == digest_json(["model", whole]), "files of earlier versions are found again"
