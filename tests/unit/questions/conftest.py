"""Fixtures of the tests in this folder."""

from report_fixtures import *  # noqa: F403
