"""A small block `knowledge` for tests, and a keyed order that is public."""

from functools import partial

from rayprivacy.core.keys import Key
from rayprivacy.knowledge.settings import KnowledgeConfig

ATTRIBUTES = [
    {"name": "type", "kind": "category", "values": ["fire", "water"], "questions": ["What type is {name}?"]},
    {"name": "diet", "kind": "category", "values": ["berries", "tree bark"], "questions": ["What does {name} eat?"]},
    {"name": "weight", "kind": "number", "unit": ["kg", "kilos"], "questions": ["How heavy is {name}?"]},
    {"name": "home", "kind": "place", "questions": ["Where does {name} live?"]},
    {"name": "sighted", "kind": "date", "questions": ["When was {name} seen?"]},
    {"name": "rival", "kind": "name", "questions": ["Who is the rival of {name}?", "Who does {name} fight?"]},
]


def small(**blocks):
    """The block, with other parts in place of some of its own."""
    return KnowledgeConfig.parse({"attributes": ATTRIBUTES, **blocks})


def order_of(user="me"):
    """The keyed order of a user."""
    return partial(Key.for_tests().integer, "knowledge", user)
