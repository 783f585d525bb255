"""Fixtures of the tests in this folder."""

from cluster_fixtures import *  # noqa: F403
from dpsgd_fixtures import *  # noqa: F403
from methods_fixtures import *  # noqa: F403
