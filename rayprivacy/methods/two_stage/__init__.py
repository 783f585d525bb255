"""Two-stage generation: one model writes parse trees, another one writes the utterance of a tree."""
