"""What an account says of who or what it protects, in words: the same in errors, certificates, cards and reports.

>>> unit_named("user: author")
"users, by column 'author'"
>>> unit_named("record: user, text, topic")
"records, by columns 'user, text, topic'"
"""

from rayprivacy.core.units import PrivacyUnit


def unit_named(of: str) -> str:
    """What one unit is; `of` is the term of the account. What follows a semicolon there is what is protected of it."""
    unit, _, rest = of.partition(": ")
    columns, _, what = rest.partition("; ")
    if unit == PrivacyUnit.PHRASE:
        named = f"phrases of {columns}"
    else:
        named = f"{unit}s, by column{'s' * (', ' in columns)} '{columns}'"
    return f"{named}; {what}" if what else named


def words_named(protected: str) -> str:
    """Which words a metric-local account protects; `protected` is the term of the account."""
    return f"the words of list {protected[:16]}" if protected else "all words"
