"""Fixtures of the tests in this folder."""

from cluster_fixtures import *  # noqa: F403
