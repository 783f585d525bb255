"""An export verifies without the database, and nothing in it can be changed unseen."""

import hashlib
import json
import random
import stat
from collections.abc import Callable
from typing import Any

import pytest
from handmade import chain, every_kind, gaussian, gdp_cost, replay, stored
from sqlalchemy import create_engine, insert
from usual import refused

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.ledger import book as schema
from rayprivacy.ledger.export import export_ledger, public_key_of, sign, verify_export

KEY, OTHER = Key.for_tests(), Key(b"k" * 32)
FILES = ("accounts.jsonl", "entries.jsonl", "outputs.jsonl", "summary.json")


def exported(directory, key=KEY, more=False):
    book = every_kind(key)
    if more:
        book.reserve("chat", "run-9", gaussian(40.0), gdp_cost(40.0))
    engine = stored(book, "sqlite://")
    with engine.begin() as connection:
        assert export_ledger(connection, directory, key) == directory
    engine.dispose()
    return directory


def refuse_export(directory, match=r"^[^\n]*\.$", **more):
    """With a sentence, if nothing else is expected."""
    refused(match, verify_export, directory, **more)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    directory = exported(tmp_path_factory.mktemp("pristine") / "export")
    return {name: (directory / name).read_bytes() for name in FILES}


@pytest.fixture
def export(tmp_path, pristine):
    (tmp_path / "copy").mkdir()
    for name, data in pristine.items():
        (tmp_path / "copy" / name).write_bytes(data)
    return tmp_path / "copy"


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def summary_of(directory):
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


Change = Callable[[dict[str, Any]], object]


def edit(directory, change, key=None):
    """Change the summary, and sign it with the forger's key."""
    summary = summary_of(directory)
    change(summary)
    if key is not None:
        summary |= {"public_key": public_key_of(key), "signed_with": "ed25519"}
        del summary["signature"]
        summary["signature"] = sign(key, canonical(summary).encode())
    (directory / "summary.json").write_text(canonical(summary) + "\n")


def rewrite(directory, name, text):
    """Write a file anew, with its digest in a summary that the forger signs."""
    (directory / name).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    edit(directory, lambda summary: summary["files"].update({name: digest}), OTHER)


def entries(lines):
    """The entries, chained with the forger's key."""
    return "".join(canonical(line) + "\n" for line in chain(lines, OTHER))


def test_an_export_says_what_the_book_says(export):
    book = every_kind(KEY)
    report, summary = verify_export(export, KEY), summary_of(export)
    expected = replay(book.rows, KEY)
    assert (report.head, report.entries, report.charges) == (expected.head, expected.entries, expected.charges)
    assert (report.macs, report.signature) == ("checked", "checked")
    assert summary["head"] == expected.head
    assert [account["name"] for account in summary["accounts"]] == sorted(row["name"] for row in book.accounts)
    chat = next(account for account in summary["accounts"] if account["name"] == "chat")
    assert chat["balance"] == book.sums["chat"]
    used = sum(sum(vector) for vector in chat["balance"].values()) / 2**80
    assert chat["left"][0] + used == pytest.approx(0.41954965855816545)  # mu*^2 of (3, 1e-6)
    assert summary["signed_with"] == "ed25519"


def test_the_signature_needs_no_secret_to_check(export):
    assert verify_export(export, public_key=public_key_of(KEY)).signature == "checked"
    assert verify_export(export, public_key=public_key_of(KEY).upper()).macs == "unchecked"
    assert verify_export(export).signature == "unchecked"
    for more in ({"key": OTHER}, {"public_key": public_key_of(OTHER)}, {"public_key": "no key"}):
        refuse_export(export, "another key", **more)
    refuse_export(export, "one of the two", key=KEY, public_key=public_key_of(OTHER))
    edit(export, lambda s: s.update(signature=None, public_key=None, signed_with="unsigned"))
    assert verify_export(export).signature == "none"
    refuse_export(export, "not signed", public_key=public_key_of(KEY))


def test_without_a_key_an_export_is_unsigned(tmp_path):
    directory = exported(tmp_path / "new" / "export", None)
    summary = summary_of(directory)
    assert (summary["signature"], summary["public_key"], summary["signed_with"]) == (None, None, "unsigned")
    report = verify_export(directory)
    assert (report.macs, report.signature) == ("none", "none")
    refuse_export(directory, "not signed", key=KEY)


def test_files_are_for_the_owner_hold_no_outputs_and_are_the_same_for_the_same_book(tmp_path, pristine):
    paths = list(exported(tmp_path / "export").iterdir())
    assert {path.name: path.read_bytes() for path in paths} == pristine
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert not any(b"output of" in data for data in pristine.values())
    (tmp_path / "file").write_text("")
    for occupied in ("export", "file"):
        with pytest.raises(ConfigError, match="not empty"):
            exported(tmp_path / occupied)


def test_a_book_that_does_not_replay_is_not_exported(tmp_path):
    engine = create_engine("sqlite://")
    schema.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(schema.accounts), every_kind().accounts)
        refused("create entry", export_ledger, connection, tmp_path / "export")
    assert not (tmp_path / "export").exists()
    engine.dispose()


@pytest.mark.parametrize("name", FILES)
def test_missing_truncated_and_foreign_files_end_in_one_sentence(export, name, pristine):
    data, file = pristine[name], export / name
    utf16 = data.decode().encode("utf-16")
    for bad in (b"", data[: len(data) // 2], data[:-2], data + b"{}\n", b"\xff\xfe" + data, utf16):
        file.write_bytes(bad)
        refuse_export(export)
    file.unlink()
    refuse_export(export, "cannot be read")
    file.mkdir()
    refuse_export(export, "cannot be read")


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(export, name, pristine):
    data, chance = pristine[name], random.Random(name)
    places = {0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(60))}
    for place in places:
        for bit in (0, 5, chance.randrange(8)):
            (export / name).write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            refuse_export(export, None)


def test_an_older_export_needs_the_head_that_was_seen(tmp_path):
    older, newer = exported(tmp_path / "older"), exported(tmp_path / "newer", more=True)
    head = summary_of(newer)["head"]
    assert verify_export(newer, KEY, expected_head=summary_of(older)["head"]).head == head
    verify_export(older, KEY)
    refuse_export(older, "older copy was put back or its tail was cut", key=KEY, expected_head=head)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(head="0" * 64),
        lambda s: s.update(entries=s["entries"] - 1),
        lambda s: s.update(outputs=True),
        lambda s: s["accounts"].pop(),
        lambda s: s["accounts"][0]["left"].__setitem__(0, 1.0),
        lambda s: s["accounts"][0]["balance"].update(reserved=[0.0]),
        lambda s: s["accounts"][0]["terms"].update(epsilon=30.0),
        lambda s: s.update(accounts={}),
        lambda s: s.update(schema_version=2),
        lambda s: s.update(files=[]),
        lambda s: s.update(files={"accounts.jsonl": ""}),
        lambda s: s["files"].update({"entries.jsonl": None}),
        lambda s: s.update(more=1),
        lambda s: s.pop("head"),
    ],
)
def test_a_summary_that_the_rows_contradict_is_found(export, change):
    edit(export, change, OTHER)
    refuse_export(export, None)


def test_a_forger_can_resign_but_not_overspend_nor_pretend(export):
    lines = [json.loads(line) for line in (export / "entries.jsonl").read_text().splitlines()]
    rewrite(export, "entries.jsonl", entries(lines))  # the same book under the forger's key
    edit(export, lambda s: s.update(head=chain(lines, OTHER)[-1]["hash"]), OTHER)
    assert verify_export(export).signature == "unchecked"
    refuse_export(export, "another key", key=KEY)
    for line in lines:
        if line["account"] == "chat" and line["kind"] == "reserve":
            line["cost"] = json.dumps([0])
    rewrite(export, "entries.jsonl", entries(lines))
    refuse_export(export, "cost")


def test_a_summary_that_is_no_summary(export):
    texts = ["", "{", "[]", "null", "NaN", "[" * 100_000, "9" * 10_000, '{"a":1,"a":2}', '"\\ud800"', "{}\n{}"]
    for depth in (200, 900, 940, 960, 980, 990, 1000):
        deep = canonical(summary_of(export) | {"accounts": "deep"})
        texts.append(deep.replace('"deep"', "[" * depth + "]" * depth) + "\n")
    for text in texts:
        (export / "summary.json").write_text(text)
        refuse_export(export)


def test_a_line_that_is_no_row(export):
    for line in ("", "[]", "{}", "7", "[" * 100_000, '{"seq":' + "9" * 10_000 + "}"):
        for name in FILES[:3]:
            rewrite(export, name, f"{line}\n")
        refuse_export(export)
