"""Fixtures of the tests in this folder."""

from generation_fixtures import *  # noqa: F403
