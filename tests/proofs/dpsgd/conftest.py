"""Fixtures of the tests in this folder."""

from dpsgd_fixtures import *  # noqa: F403
