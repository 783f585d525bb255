"""Fixtures of the tests in this folder."""

from runs_fixtures import *  # noqa: F403
