"""Hyper-parameter search that pays for itself: spaces, searchers, charging rules, the frontier."""
