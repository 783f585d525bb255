"""What users name, in the worst ways, for counts by key."""

from rayprivacy.core.keys import Key

KEY = Key.for_tests()
ADVERSARIES = {
    "nobody": [],
    "empty texts": [[], []],
    "one key": [["red"]],
    "one key in every text": [["red"]] * 50,
    "one key fifty times in a text": [["red"] * 50],
    "more keys than may be": [[f"key {n}" for n in range(100)]],
    "one more than may be, one in each text": [[f"key {n}"] for n in range(5)],
    "keys of everybody": [["red", "blue", "green", "black", "white", "grey"]],
    "keys of nobody": [["mine", "my own", "my very own", "only mine", "mine too"]],
    "no keys at all": [["", "\ud800", "x" * 1001, "a\udfffb"]],
    "no keys, and more than may be": [["", "\ud800", "x" * 1001, "a", "b", "c", "d", "e"]],
    "look-alikes": [["é", "e\u0301", "É", "e"]],
    "what JSON must quote": [['"', "\\", "\n", "\0", "\u2028", "😀"]],
}
CROWD = [(f"user {n}", [["red", "blue"], ["green", "black", "white", "grey", "red"]]) for n in range(7)]


def sums_of(mechanism, users):
    """The sums of users, given as (name, texts), each text as a list of keys."""
    mentions = [(name, word) for name, texts in users for text in texts for word in text]
    return mechanism.contribution(KEY, [name for name, _ in mentions], [word for _, word in mentions])
