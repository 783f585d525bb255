"""Fixtures of the tests in this folder."""

from sanitize_fixtures import *  # noqa: F403
