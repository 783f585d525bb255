"""Attacks on mechanisms and models, and what their success says about a claimed epsilon."""
