"""Units 'record' and 'phrase' through a real Ray: blocks and formats, resume, and what errors and logs say.

Caught: a phrase or key that travels as a Ray argument or lands in a log, shards reused after the list or the unit
changed, masking that depends on how Ray cuts the corpus into blocks.
"""

import traceback

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import TEST_SECRET, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import read_holdout, read_part
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.verify import shards_per_phrase, verify_shards

pytestmark = pytest.mark.usefixtures("local_ray")
SHARDS, PER_PART, BOUND = 8, 3, 2
RECORD, PHRASE = PrivacyUnit.RECORD, PrivacyUnit.PHRASE


@pytest.fixture
def key_path(tmp_path):
    """The fixed key: which texts are held out does not change from run to run."""
    write_atomic(tmp_path / "key", TEST_SECRET, 0o600)
    return tmp_path / "key"


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Xq7 Lee\nzebra\n")
    return path


def sources(tmp_path, texts):
    """The same 240 rows of 20 users: one Parquet file, and three CSV files in another order."""
    rows = [{"user": f"u{n % 20}", "text": texts[n % len(texts)].format(n)} for n in range(240)]
    for folder in ("parquet", "csv"):
        (tmp_path / folder).mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet" / "0.parquet", row_group_size=50)
    for index in range(3):
        pa.csv.write_csv(pa.Table.from_pylist(rows[::-1][index::3]), tmp_path / "csv" / f"{index}.csv")
    return [str(tmp_path / "parquet"), str(tmp_path / "csv")]


def test_records_through_ray(tmp_path, key_path):
    key, out = load_key(key_path), tmp_path / "out"
    _, source = sources(tmp_path, ["text {}", "same", "text {}"])
    config = CorpusConfig(source=source, max_records_per_user=None)
    made = shard_corpus(config, key_path, SHARDS, PER_PART, out, RECORD)
    verify_shards(out, key, RECORD)
    assert made.rows == 160 + 20
    rows = [row for part in range(3) for row in read_part(out, part).to_pylist()]
    assert len({row["shard"] for row in rows if row["user"] == rows[0]["user"]}) > 1
    users = shard_corpus(CorpusConfig(source=source), key_path, SHARDS, PER_PART, out)
    assert users.unit is PrivacyUnit.USER
    verify_shards(out, key)


def test_phrases_through_ray(tmp_path, key_path, names, local_ray):
    key, phrases, made = load_key(key_path), load_phrases(str(names)), []
    folders = sources(tmp_path, ["xq7-LEE {}", "a Zebra", "a [masked]", "{} of zebras"])
    for name, source in enumerate(folders):
        config = CorpusConfig(source=source, phrases=str(names), max_shards_per_phrase=BOUND, holdout=0.2)
        made.append(shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / f"{name}", PHRASE))
        verify_shards(tmp_path / f"{name}", key, PHRASE, phrases)
    assert made[0].files == made[1].files
    counts = shards_per_phrase(tmp_path / "0", made[0], phrases)
    assert max(counts.values()) <= BOUND
    texts = {text for part in range(3) for text in read_part(tmp_path / "0", part)["text"].to_pylist()}
    assert "a [masked]" in texts
    assert any("zebras" in text for text in texts)
    assert any("xq7-LEE" in text for text in read_holdout(tmp_path / "0")["text"].to_pylist())
    logs = "".join(path.read_text(errors="replace") for path in (local_ray / "logs").rglob("*") if path.is_file())
    assert "xq7" not in logs.lower()


def test_another_list_shards_anew(tmp_path, key_path, names):
    source, _ = sources(tmp_path, ["a zebra {}", "lynx {}"])
    config = CorpusConfig(source=source, phrases=str(names), max_shards_per_phrase=1, holdout=0.0)
    first = shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / "out", PHRASE)
    assert shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / "out", PHRASE) == first  # as it lies there
    names.write_text("lynx\n")
    second = shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / "out", PHRASE)
    verify_shards(tmp_path / "out", load_key(key_path), PHRASE, load_phrases(str(names)))
    assert second.config != first.config
    assert "lynx" not in (tmp_path / "out" / "manifest.json").read_text()
    names.write_text("Xq7 one\none Xq7\n")
    with pytest.raises(ConfigError, match="line 1 ends as line 2 begins") as caught:
        shard_corpus(config, key_path, SHARDS, PER_PART, tmp_path / "out", PHRASE)
    assert "xq7" not in "".join(traceback.format_exception(caught.value)).lower().replace(str(tmp_path).lower(), "")
