"""Fixtures of the tests in this folder."""

from methods_fixtures import *  # noqa: F403
