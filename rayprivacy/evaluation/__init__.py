"""Figures of merit as pure functions on text and sums; whether a figure may be shared is the caller's to record."""
