"""The auditor: a second reading of the book that shares the table definitions with the first and nothing else.

A ledger is worth what its checks are worth, and a check made by the code that wrote the row repeats its mistakes. So
this package replays a book from its rows with formulas, state machine and JSON reader of its own (`dp_accounting` and
closed forms instead of `rayprivacy.accounting`). Bottom to top:

- `rows`: the rows, from a database or an export, with the type of every cell, the hash chain and the macs checked;
- `terms`, `prices`, `rules`: what an account promised, and what an event costs under that promise;
- `book`: sums, charges and exposures after each entry, compared with what the entry claims;
- `replay`: one walk over the rows that applies all of it.

What the chain proves: with a head or the key kept elsewhere, every change shows. What the replay proves: even a book
written anew with consistent hashes must follow the rules of its accounts, or it is refused.
"""
