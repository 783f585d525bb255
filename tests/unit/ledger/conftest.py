"""Fixtures of the tests in this folder."""

from ledger_fixtures import *  # noqa: F403
