"""Methods: a folder for each, with its recipe, its plan and its algorithm, and one line in `registry`.

None imports another. What all runs have in common is in `rayprivacy.runs`, which knows no method.
"""
