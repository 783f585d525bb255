import pytest

from rayprivacy.core.keys import Key
from rayprivacy.sanitize.mechanism import Coins
from rayprivacy.sanitize.vocabulary import load_glove


@pytest.fixture(scope="session")
def glove():
    """The 500 most frequent words of GloVe, with vectors of length 1."""
    return load_glove(500, unit_length=True)


@pytest.fixture
def coins():
    return Coins(Key.for_tests(), "account", "inputs")
