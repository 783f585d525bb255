"""Shards of a corpus, as `shard_corpus` writes them, without Ray, and what audited runs are made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.keys import Key
from rayprivacy.corpus.layout import FILE, HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.manifest import ShardManifest, write_part
from rayprivacy.corpus.users import ORDER, Dropped, bounded, ordered


def string_table(rows: Sequence[Sequence[str | None]], names: Sequence[str] = ("user", "text", "topic")) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table({name: pa.array(column, pa.string()) for name, column in zip(names, columns, strict=True)})


def finished(prepared: pa.Table, key: Key, layout: Layout) -> dict[int, pa.Table]:
    """The final rows of every file: of every part, and of those held out, where none is cut."""
    rows = {file: prepared.filter(pc.equal(prepared[FILE], file)) for file in layout.files}
    return {file: finish(own, file, key, layout)[0] for file, own in rows.items()}


def bound(table: pa.Table, key: Key, most: int | None) -> tuple[pa.Table, Dropped]:
    kept, dropped = bounded(ordered(table, key), most)
    return kept.drop_columns([ORDER]), dropped


SPOKEN = "hello how are you today fine thank the weather is nice and sun out this morning like soup bread train".split()  # noqa: SIM905
EVENTS = [{"kind": "gaussian", "sigma_eff": 10.0, "q": None, "count": 25, "sensitivity": ""}]  # mu = 0.5


def write_shards(table: pa.Table, key: Key, recipe: Any, out: Path, parts: int) -> None:
    out.mkdir(parents=True)
    layout = Layout(recipe.corpus, parts, 1, recipe.privacy.unit)
    prepared, dropped = prepare(table, key, layout)
    rows = finished(prepared, key, layout)
    entries = {part: write_part(table, part, key, out, layout.unit) for part, table in rows.items()}
    ShardManifest(
        config="",
        shards=parts,
        per_part=1,
        max_records_per_user=recipe.corpus.max_records_per_user,
        holdout_share=recipe.corpus.holdout,
        parts=tuple(entries[part] for part in range(parts)),
        holdout=entries[HOLDOUT],
        dropped=dropped + Dropped(),
        unit=recipe.privacy.unit,
    ).write(out)
