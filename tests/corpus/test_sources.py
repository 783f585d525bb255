"""The corpus as tables: shares that together are all of it, and the chat data set."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source, read_share, source_stamp


def _rows(config: CorpusConfig, shares: int) -> list[tuple[object, ...]]:
    stamp = check_source(config)
    pieces = [piece for share in range(shares) for piece in read_share(config, share, shares, stamp)]
    assert {tuple(piece.column_names) for piece in pieces} == {("user", "text", *config.labels)}
    return [tuple(row.values()) for piece in pieces for row in piece.to_pylist()]


@pytest.mark.parametrize("files", [1, 3, 11])
def test_shares_are_disjoint_and_complete(tmp_path: Path, files: int) -> None:
    rows = [{"uid": n % 7, "body": f"message {n}", "extra": n} for n in range(60)]
    for number in range(files):
        table = pa.Table.from_pylist(rows[number::files])
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=5)
    config = CorpusConfig(source=str(tmp_path), user="uid", text="body")
    for shares in (1, 4, 16):
        assert Counter(_rows(config, shares)) == Counter((row["uid"], row["body"]) for row in rows)


def test_a_source_of_another_moment_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,text\n1,hello\n")
    config = CorpusConfig(source=str(tmp_path / "a.csv"))
    stamp = source_stamp(config)
    (tmp_path / "a.csv").write_text("user,text\n1,hello\n2,new\n")
    with pytest.raises(CorpusError, match="changed while it was read"):
        list(read_share(config, 0, 1, stamp))


def test_chitchat_has_two_columns_unless_asked_for_more() -> None:
    pytest.importorskip("chitchat_dataset")
    assert next(read_share(CorpusConfig(), 0, 2, "")).column_names == ["user", "text"]
    assert not list(read_share(CorpusConfig(), 1, 2, ""))
    with pytest.raises(CorpusError, match=r"corpus.labels is 'mood'.*choose of user, text, topic"):
        check_source(CorpusConfig(labels=("mood",)))


def test_the_topic_of_chitchat_is_a_public_question_or_nothing() -> None:
    conversations = pytest.importorskip("chitchat_dataset").Dataset().values()
    found = Counter(_rows(CorpusConfig(labels=("topic",)), 1))
    expected = Counter(
        (message["sender"], message["text"], conversation.get("prompt") or None)
        for conversation in conversations
        for turn in conversation["messages"]
        for message in turn
    )
    assert found == expected
    topics = {topic for _, _, topic in found}
    assert len(topics - {None}) == 34
    assert None in topics
    assert "" not in topics
