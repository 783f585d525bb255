"""Releases that are to be made again, because the version that made them did not keep what it claimed.

Version 0.1 trained with DP-SGD in batches whose width, in bfloat16, moved the gradients of others: one user could move
a sum by more than the clipping norm, so that the noise was too small for the epsilon that was charged. In float32 the
claim stands. The book holds no number format, but what a training commits has grown since: the digest of a model (64
bytes) or the name of a winner (16) with a prefix in front. So a release of that version is known by the size of its
output, which an export holds too; its recipe says whether it was bfloat16.
"""

from rayprivacy.ledger.audit.rows import Row

_SAMPLED = '"poisson-sampled-gaussian"'
_DIGEST, _WINNER = 64, 16


def recalled(entries: list[Row], outputs: list[Row]) -> tuple[str, ...]:
    """Releases of version 0.1 whose claim does not hold if they computed in bfloat16, each as `release of account`."""
    sizes = {row["charge"]: row["size"] for row in outputs}
    found = dict.fromkeys(
        f"'{row['release_id']}' of account '{row['account']}'"
        for row in entries
        if row["kind"] == "reserve" and _SAMPLED in row["events"] and sizes.get(row["charge"]) == _expected(row)
    )
    return tuple(found)


def _expected(row: Row) -> int:
    return _DIGEST if row["rung"] else _WINNER
