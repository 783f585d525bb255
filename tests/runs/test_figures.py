"""A run of the generator with figures that may be published: released once, shown everywhere, charged to one account."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MANY = "corpus.holdout=0.5"
NO_NOISE = ("privacy.epsilon=1000000", "privacy.composition=gdp")


def test_figures_are_released_and_shown(generator):
    done = generator.run("out", "-o", "figures={share: 0.5}", "-o", MANY)
    assert done.returncode == 0, done.stderr
    print(json.dumps(generator.metrics("out")["figures"], indent=1), json.dumps(generator.certificate("out"), indent=1))
    assert 0
