"""Fixtures of the tests in this folder."""

from methods_fixtures import *  # noqa: F403
from runs_fixtures import *  # noqa: F403
