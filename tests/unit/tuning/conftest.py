"""Fixtures of the tests in this folder."""

from tuning_fixtures import *  # noqa: F403
