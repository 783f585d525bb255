"""Fixtures of the tests in this folder."""

from teachers_fixtures import *  # noqa: F403
