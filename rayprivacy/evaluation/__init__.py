"""Figures of merit of synthetic text, as pure functions on text and sums; callers record which may be shared."""
