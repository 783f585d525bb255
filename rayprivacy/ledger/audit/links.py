"""The hash chain and the macs: that nothing was changed, removed, moved or, with the key, written anew.

hash = SHA-256 of the canonical JSON of every column but `hash` and `mac`; `rung`, `cost` and `balance` are left out
when they are 0 or empty. mac = PRF(key, "ledger-entry", hash): without the key, a rewritten chain can have new hashes
and no new macs. A book may begin without macs and be keyed later, never the other way round. A book that was written
anew without the key, and then continued with it, looks like that too: so the report names the first entry with a mac.
"""

import hashlib

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.strict import canonical, fail, is_digest

GENESIS = "0" * 64
MAX_RUNG = 2**31 - 1
_UNHASHED = {"hash", "mac"}
_LEFT_OUT = {"rung": 0, "cost": "", "balance": ""}


def check_links(entries: list[Row], key: Key | None, expected_head: str | None) -> tuple[str, str]:
    """Check every link and mac; returns the head, and `VerifyReport.macs`."""
    head, keyed = GENESIS, 0  # the first entry with a mac
    heads = {GENESIS}
    for seq, row in enumerate(entries, start=1):
        where = f"entry {seq}"
        if row["seq"] != seq or row["prev_hash"] != head:
            fail(where, "does not follow the one before it")
        if not 0 <= row["rung"] <= MAX_RUNG or _hash(row) != row["hash"]:
            fail(where, "does not match its hash")
        head = str(row["hash"])
        if _check_mac(row["mac"], head, key, keyed > 0, where):
            keyed = keyed or seq
        heads.add(head)
    if expected_head is not None and expected_head not in heads:
        raise LedgerError(
            f"the ledger lacks the entry {expected_head[:12]} seen earlier: an older copy was put back or its tail was"
            " cut, so restore the newest one."
        )
    return head, _said(keyed, key is not None)


def _said(keyed: int, checked: bool) -> str:
    if not keyed:
        return "none"
    since = "" if keyed == 1 else f" from entry {keyed} on"
    return ("checked" if checked else "unchecked") + since


def _hash(row: Row) -> str:
    content = {k: v for k, v in row.items() if k not in _UNHASHED and not (k in _LEFT_OUT and v == _LEFT_OUT[k])}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _check_mac(mac: str, digest: str, key: Key | None, keyed: bool, where: str) -> bool:
    if mac == "":
        if keyed:
            fail(where, "has no mac although the one before it has")
        return False
    if not is_digest(mac) or (key is not None and mac != key.digest("ledger-entry", digest)):
        fail(where, "does not match its mac (the key is another one, or the entry was written without it)")
    return True
