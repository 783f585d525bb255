"""An export verifies without the database, and nothing in it can be changed unseen."""

import hashlib
import json
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import chain, every_kind, gaussian, gdp_cost, replay, stored
from sqlalchemy import create_engine, insert

from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger import book as schema
from rayprivacy.ledger.export import export_ledger, public_key_of, sign, verify_export

KEY, OTHER = Key.for_tests(), Key(b"k" * 32)
FILES = ("accounts.jsonl", "entries.jsonl", "outputs.jsonl", "summary.json")


def exported(directory: Path, key: Key | None = KEY, more: bool = False) -> Path:
    book = every_kind(key)
    if more:
        book.reserve("chat", "run-9", gaussian(40.0), gdp_cost(40.0))
    engine = stored(book, "sqlite://")
    with engine.begin() as connection:
        assert export_ledger(connection, directory, key) == directory
    engine.dispose()
    return directory


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = exported(tmp_path_factory.mktemp("pristine") / "export")
    return {name: (directory / name).read_bytes() for name in FILES}


@pytest.fixture
def export(tmp_path: Path, pristine: dict[str, bytes]) -> Path:
    return write(tmp_path / "copy", pristine)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def write(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def summary_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def edit(directory: Path, change: Callable[[dict[str, Any]], object], key: Key | None = None) -> None:
    """Change the summary, and sign it with the forger's key."""
    summary = summary_of(directory)
    change(summary)
    if key is not None:
        summary |= {"public_key": public_key_of(key), "signed_with": "ed25519"}
        del summary["signature"]
        summary["signature"] = sign(key, canonical(summary).encode())
    (directory / "summary.json").write_text(canonical(summary) + "\n")


def rewrite_entries(directory: Path, lines: list[dict[str, Any]], key: Key | None = None) -> None:
    data = "".join(canonical(line) + "\n" for line in lines).encode()
    (directory / "entries.jsonl").write_bytes(data)
    edit(directory, lambda s: s["files"].update({"entries.jsonl": hashlib.sha256(data).hexdigest()}), key)


def test_an_export_says_what_the_book_says(export: Path) -> None:
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


def test_the_signature_needs_no_secret_to_check(export: Path) -> None:
    assert verify_export(export, public_key=public_key_of(KEY)).signature == "checked"
    assert verify_export(export, public_key=public_key_of(KEY).upper()).macs == "unchecked"
    assert verify_export(export).signature == "unchecked"
    for more in ({"key": OTHER}, {"public_key": public_key_of(OTHER)}, {"public_key": "no key"}):
        with pytest.raises(LedgerError, match="another key"):
            verify_export(export, **more)
    with pytest.raises(LedgerError, match="one of the two"):
        verify_export(export, KEY, public_key_of(OTHER))


def test_without_a_key_an_export_is_unsigned(tmp_path: Path) -> None:
    directory = exported(tmp_path / "new" / "export", None)
    summary = summary_of(directory)
    assert (summary["signature"], summary["public_key"], summary["signed_with"]) == (None, None, "unsigned")
    report = verify_export(directory)
    assert (report.macs, report.signature) == ("none", "none")
    with pytest.raises(LedgerError, match="not signed"):
        verify_export(directory, KEY)


def test_files_are_for_the_owner_and_hold_no_outputs(tmp_path: Path) -> None:
    directory = exported(tmp_path / "export")
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"output of" not in path.read_bytes()


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    exported(tmp_path / "export")
    with pytest.raises(ConfigError, match="not empty"):
        exported(tmp_path / "export")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not empty"):
        exported(tmp_path / "file")


def test_the_same_book_gives_the_same_bytes(tmp_path: Path, pristine: dict[str, bytes]) -> None:
    directory = exported(tmp_path / "again")
    assert {name: (directory / name).read_bytes() for name in FILES} == pristine


def test_a_book_that_does_not_replay_is_not_exported(tmp_path: Path) -> None:
    engine = create_engine("sqlite://")
    schema.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(schema.accounts), every_kind().accounts)
        with pytest.raises(LedgerError, match="create entry"):
            export_ledger(connection, tmp_path / "export")
    assert not (tmp_path / "export").exists()
    engine.dispose()


@pytest.mark.parametrize("name", FILES)
def test_missing_truncated_and_foreign_files_end_in_one_sentence(
    export: Path, name: str, pristine: dict[str, bytes]
) -> None:
    data = pristine[name]
    for bad in (
        b"",
        data[: len(data) // 2],
        data[:-2],
        data + b"{}\n",
        b"\xff\xfe" + data,
        data.decode().encode("utf-16"),
    ):
        (export / name).write_bytes(bad)
        with pytest.raises(LedgerError, match=r"^[^\n]*\.$"):
            verify_export(export)
    (export / name).unlink()
    with pytest.raises(LedgerError, match="cannot be read"):
        verify_export(export)
    (export / name).mkdir()
    with pytest.raises(LedgerError, match="cannot be read"):
        verify_export(export)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(export: Path, name: str, pristine: dict[str, bytes]) -> None:
    data, chance = pristine[name], random.Random(name)
    places = {0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(60))}
    for place in places:
        for bit in (0, 5, chance.randrange(8)):
            (export / name).write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            with pytest.raises(LedgerError):
                verify_export(export)


def test_an_older_export_needs_the_head_that_was_seen(tmp_path: Path) -> None:
    older, newer = exported(tmp_path / "older"), exported(tmp_path / "newer", more=True)
    head = summary_of(newer)["head"]
    assert verify_export(newer, KEY, expected_head=summary_of(older)["head"]).head == head
    verify_export(older, KEY)
    with pytest.raises(LedgerError, match="older copy was put back or its tail was cut"):
        verify_export(older, KEY, expected_head=head)


def test_a_stripped_signature_is_found_by_who_expects_one(export: Path) -> None:
    edit(export, lambda s: s.update(signature=None, public_key=None, signed_with="unsigned"))
    assert verify_export(export).signature == "none"
    with pytest.raises(LedgerError, match="not signed"):
        verify_export(export, public_key=public_key_of(KEY))


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
def test_a_summary_that_the_rows_contradict_is_found(export: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(export, change, OTHER)
    with pytest.raises(LedgerError):
        verify_export(export)


def test_a_forger_can_resign_but_not_overspend_nor_pretend(export: Path) -> None:
    lines = [json.loads(line) for line in (export / "entries.jsonl").read_text().splitlines()]
    rewrite_entries(export, chain(lines, OTHER), OTHER)  # the same book under the forger's key
    edit(export, lambda s: s.update(head=chain(lines, OTHER)[-1]["hash"]), OTHER)
    assert verify_export(export).signature == "unchecked"
    with pytest.raises(LedgerError, match="another key"):
        verify_export(export, KEY)
    for line in lines:
        if line["account"] == "chat" and line["kind"] == "reserve":
            line["cost"] = json.dumps([0])
    rewrite_entries(export, chain(lines, OTHER), OTHER)
    with pytest.raises(LedgerError, match="cost"):
        verify_export(export)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "NaN", "[" * 100_000, "9" * 10_000, '{"a":1,"a":2}', '"\\ud800"', "{}\n{}"]
)
def test_a_summary_that_is_no_summary(export: Path, text: str) -> None:
    (export / "summary.json").write_text(text)
    with pytest.raises(LedgerError, match=r"^[^\n]*\.$"):
        verify_export(export, KEY)


@pytest.mark.parametrize("line", ["", "[]", "{}", "7", "[" * 100_000, '{"seq":' + "9" * 10_000 + "}"])
def test_a_line_that_is_no_row(export: Path, line: str) -> None:
    data = f"{line}\n".encode()
    for name in FILES[:3]:
        (export / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        edit(export, lambda s, name=name, digest=digest: s["files"].update({name: digest}), OTHER)
    with pytest.raises(LedgerError, match=r"^[^\n]*\.$"):
        verify_export(export)


@pytest.mark.parametrize("depth", [200, 900, 940, 960, 980, 990, 1000])
def test_deep_nesting_ends_in_one_sentence(export: Path, depth: int) -> None:
    summary = summary_of(export)
    text = canonical(summary | {"accounts": "deep"}).replace('"deep"', "[" * depth + "]" * depth)
    (export / "summary.json").write_text(text + "\n")
    with pytest.raises(LedgerError, match=r"^[^\n]*\.$"):
        verify_export(export)
