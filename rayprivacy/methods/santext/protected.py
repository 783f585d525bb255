"""What SanText protects of a unit: the words of one column, less what is released as it is; a term of the account.

Epsilons of two releases add up for what both protect. So what one of them releases as it is (the case of words, white
space, place and kind of typed values) is no part of what an account claims, and labels are a part where they are
randomised. Which words are protected is told by the events themselves.
"""

from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.runs.meaning import column_named


def protected_of(recipe: SanTextRecipe) -> str:
    """What is protected of a unit, e.g. `words of text, labels topic, not case`."""
    config, corpus = recipe.sanitize, recipe.corpus
    labels = sorted(map(column_named, corpus.labels)) if config.labels.kind == "randomize" else []
    released = [name for name in ("case", "layout") if getattr(config, name) == "keep"]
    if config.entities:
        kept = "place, kind and equality" if config.consistent else "place and kind"
        released.append(f"{kept} of {' '.join(sorted(config.entities))} by {config.detector}")
    parts = [f"words of {column_named(corpus.text)}"]
    parts += [f"labels {' '.join(labels)}"] if labels else []
    parts += [f"not {' nor '.join(released)}"] if released else []
    return ", ".join(parts)
