"""The cache of calibrated noise saves time and decides nothing."""

from unittest.mock import Mock

import pytest

from rayprivacy.core.files import user_cache
from rayprivacy.runs.calibration import kept


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return user_cache() / "noise"


def test_a_number_is_computed_once_for_its_inputs():
    compute = Mock(return_value=0.1 + 0.2)
    assert kept(compute, 0.1, 40) == kept(compute, 0.1, 40) == 0.1 + 0.2
    assert compute.call_count == 1
    kept(compute, 0.1, 41)
    assert compute.call_count == 2


@pytest.mark.parametrize("damage", ["", "nan", "-1", "inf", "0", "half", "1e400"])
def test_a_damaged_file_is_computed_again(cache, damage):
    kept(lambda: 2.5, "inputs")
    (path,) = cache.iterdir()
    path.write_text(damage)
    assert kept(lambda: 2.5, "inputs") == 2.5
    assert path.read_text() == "2.5"


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    assert kept(lambda: 2.5, "inputs") == 2.5
