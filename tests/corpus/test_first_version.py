"""Unit 'user' is what it was before there were others: frozen shards, rows and digests under the test key."""

from plain_shards import finished, string_table

from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_json
from rayprivacy.corpus.layout import HOLDOUT, Layout, content_digest, prepare
from rayprivacy.corpus.manifest import ShardManifest, read_manifest, write_part
from rayprivacy.corpus.phrases import tidy
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.users import Dropped

KEY = Key.for_tests()
LAYOUT = Layout(CorpusConfig(labels=("topic",), max_records_per_user=3, holdout=0.3), shards=7, per_part=2)
SHARDS = [3, 5, -1, 0, 1, 3, 4, -1, 1, -1, 2, 6, 3, -1, 5, 4, 0, -1, -1, 4, 2, -1, -1, 4]
PARTS = {
    HOLDOUT: (6, "a996ef4dc35c001f", "a7c3000b808d2b9c"),
    0: (9, "b1b3c2f24926097b", "177f7cc7b335d723"),
    1: (6, "87e7017ca78abe74", "02015930409af8cf"),
    2: (6, "b0f2549906ff7a4e", "5b74236180c34cdb"),
    3: (0, "4f53cda18c2baa0c", "0" * 16),
}


def test_rows_digests_and_manifest_are_what_they_were(tmp_path):
    rows = [(f"user-{n % 9}", f" text {n % 31} ", "ab"[n % 2] if n % 5 else None) for n in range(120)]
    parts = finished(prepare(tidy(string_table(rows), KEY, LAYOUT, None)[0], KEY, LAYOUT)[0], KEY, LAYOUT)
    assert [LAYOUT.shard_of(KEY, f"user-{n}") for n in range(24)] == SHARDS
    assert {
        part: (len(rows), digest_json(rows.to_pylist())[:16], content_digest(rows, KEY)[:16])
        for part, rows in parts.items()
    } == PARTS
    files = {part: write_part(rows, part, KEY, tmp_path) for part, rows in parts.items()}
    manifest = ShardManifest("", 7, 2, 3, 0.3, tuple(files[part] for part in range(4)), files[HOLDOUT], Dropped())
    manifest.write(tmp_path)
    assert "unit" not in (tmp_path / "manifest.json").read_text()
    assert read_manifest(tmp_path) == manifest
