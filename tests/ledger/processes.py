"""Clean child processes: a server imports the library once, and each child is forked from it.

Not "fork" from the test process: that may hold the locks of torch's and Ray's threads, and a child would wait for ever.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

_PRELOAD = [
    "pytest",  # a child imports the main module of its parent again
    "psycopg",
    "hypothesis",
    "rayprivacy.release.gate",
    "rayprivacy.accounting.calibrate",
    "rayprivacy.ledger.store",
]


def forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context
