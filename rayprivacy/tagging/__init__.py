"""Taggers: a tag for each word, with or without CRF."""
