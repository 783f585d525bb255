"""What the fuzz tries: codec, plans, damaged files, forged rows, and every command on ledgers and every calculator.

A case returns whether the input was accepted. It raises `RayPrivacyError` when the input is refused with a sentence.
Anything else is a failure; `Nonsense` is raised when something was accepted that should not be.
"""

import io
import json
import math
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import fuzz_inputs as inputs
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, NonPrivateDpEvent
from typer.main import get_command

from rayprivacy.accounting.accountant import gdp_cost, plan_lines, read_plan
from rayprivacy.accounting.events import (
    MetricLocalDpEvent,
    ThresholdedGaussianDpEvent,
    document_epsilon,
    from_json,
    leaves,
    to_json,
    without_thresholds,
)
from rayprivacy.accounting.gaussian import rho
from rayprivacy.accounting.renyi import rdp
from rayprivacy.cli import app, main
from rayprivacy.core.errors import EventError, LedgerError, RayPrivacyError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.book import metadata
from rayprivacy.ledger.store import Ledger

SKIPPED = ("plan", "run", "report", "schema")  # they read recipes and runs, not ledgers
NEVER = re.compile(r"Traceback|(epsilon|sigma|std)\w* *[=:]? *(nan|-\d)", re.IGNORECASE)
TABLES = ("accounts", "entries", "outputs")
UNHASHED = ("mac",)  # says who wrote an entry, and is checked with the ledger's key


class Nonsense(Exception):
    """Something was accepted, or printed, that makes no sense."""


class Fuzz:
    """The cases, over a folder with a sound ledger in it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self._chance = folder, chance
        self._sound = folder / "sound.db"
        self._head = _sound_ledger(self._sound)
        self._rows = _rows(self._sound)
        self._commands = [pair for pair in _commands(get_command(app)) if pair[0][0] not in SKIPPED]
        self.cases: list[Callable[[], bool]] = [
            *(self.codec, self.codec, self.codec_of_text, self.plan_file, self.forged_row, self.forged_row),
            *(self.damaged_file, self.command, self.command, self.command),
        ]

    def codec(self) -> bool:
        """Events: what is accepted comes back the same, and costs something."""
        _check_event(inputs.event(self._chance))
        return True

    def codec_of_text(self) -> bool:
        """Events from damaged JSON."""
        data = inputs.noise(self._chance, json.dumps(inputs.event(self._chance)).encode())
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return False
        _check_event(value)
        return True

    def plan_file(self) -> bool:
        """Plans in odd encodings."""
        plan = [inputs.event(self._chance) for _ in range(self._chance.choice((0, 1, 1, 2)))]
        path = inputs.text_file(self._chance, self._folder / "plan.yaml", json.dumps(plan))
        for leaf, count in plan_lines(read_plan(path)):
            if count < 1:
                raise Nonsense(f"{count} times {leaf}")
        return True

    def damaged_file(self) -> bool:
        """A ledger file on a bad disk: whatever verifies is what was written."""
        path = self._copy("damaged.db")
        path.write_bytes(inputs.noise(self._chance, self._sound.read_bytes()))
        self._use(path)
        return True

    def forged_row(self) -> bool:
        """One value of one row replaced behind the triggers."""
        path = self._copy("forged.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as book:
            self._forge(book)
        self._use(path)
        return True

    def command(self) -> bool:
        """One command with one set of options, as typed in a shell."""
        names, command = self._chance.choice(self._commands)
        arguments = [*names]
        for option in command.params:
            needed = option.required or self._chance.random() < 0.45
            if needed and option.name != "help":
                arguments += self._typed(option)
        return _invoke(arguments)

    def _typed(self, option: Any) -> list[str]:
        name = option.opts[-1]
        if getattr(option, "is_flag", False):
            return [name]
        value = self._value(option.name).replace("\0", "")  # no shell can pass one
        return [value] if option.param_type_name == "argument" else [name, value]

    def _value(self, name: str) -> str:
        chance = self._chance
        if chance.random() < 0.1:
            return chance.choice((*inputs.TYPED, *inputs.WORDS))
        if name == "ledger":
            return f"sqlite:///{self._copy('command.db')}"
        if name in ("plan", "certificate", "ledger_key", "key", "export"):
            value = [inputs.event(chance) for _ in range(2)] if name == "plan" else {"ledger_head": self._head}
            return str(inputs.text_file(chance, self._folder / f"{name}.txt", json.dumps(value)))
        if name in ("out", "directory"):
            return str(self._folder / f"out-{chance.randrange(10**9)}")
        if name in SANE and chance.random() < 0.7:
            return chance.choice(SANE[name])
        return chance.choice(inputs.TYPED)

    def _copy(self, name: str) -> Path:
        path = self._folder / name
        for left in self._folder.glob(f"{name}*"):
            left.unlink()
        shutil.copy(self._sound, path)
        return path

    def _forge(self, book: sqlite3.Connection) -> None:
        for (name,) in book.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            book.execute(f"DROP TRIGGER {name}")
        table = self._chance.choice(TABLES)
        column = self._chance.choice([row[1] for row in book.execute(f"PRAGMA table_info({table})")])
        row, old = self._chance.choice(book.execute(f"SELECT rowid, {column} FROM {table}").fetchall())
        try:
            book.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (self._forged(old), row))
        except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError):
            return  # not even the database takes it

    def _forged(self, old: Any) -> Any:
        chance = self._chance
        if chance.random() < 0.2 or not isinstance(old, str):
            values = (*inputs.NUMBERS, *inputs.WORDS, b"\xff\xfe", b"", "9" * 5000, "[" * 5000)
            return chance.choice([value for value in values if not isinstance(value, list | dict)])
        try:
            return json.dumps(inputs.changed(chance, json.loads(old)))
        except ValueError:
            return inputs.noise(chance, old.encode()).decode(errors="replace")

    def _use(self, path: Path) -> None:
        """Everything that a ledger is asked for: each must answer, or refuse with a sentence."""
        if self._verifies(path):
            found = _rows(path)
            for table in TABLES:
                if found[table] != self._rows[table]:
                    changes = [row for row in found[table] if row not in self._rows[table]]
                    raise Nonsense(f"the changed {table} verify: {repr(changes)[:300]}")
        refusal: RayPrivacyError | None = None
        with closing(Ledger.open(f"sqlite:///{path}")) as ledger:
            for ask in ASKED:
                try:
                    ask(ledger)
                except RayPrivacyError as error:
                    refusal = error
        _invoke(
            [
                "ledger",
                "show",
                "--ledger",
                f"sqlite:///{path}",
                "--account",
                "chat",
                *self._chance.choice(([], ["--json"])),
            ]
        )
        if refusal is not None:
            raise refusal

    def _verifies(self, path: Path) -> bool:
        try:
            with closing(Ledger.open(f"sqlite:///{path}")) as ledger:
                ledger.verify(expected_head=self._head)
        except RayPrivacyError:
            return False
        return True


EVENT = GaussianDpEvent(20.0)
SANE = {
    "account": ("chat", "phones", "words", "new"),
    "epsilon": ("3", "8", "0.5"),
    "delta": ("1e-6", "1e-5"),
    "sigma": ("1", "10", "0.7"),
    "q": ("0.01", "0.1", "1"),
    "steps": ("10", "1000"),
    "count": ("1", "100"),
    "composition": ("gdp", "zcdp", "rdp", "pld", "metric"),
    "kind": ("central", "selective", "metric-local"),
    "unit": ("user", "record"),
    "relation": ("add-or-remove", "replace"),
    "distribution": ("geometric", "poisson", "negative-binomial"),
    "release": ("run-0", "run-1", "run-2"),
    "queries": ("1000",),
    "teachers": ("1000",),
    "trials": ("10", "2.5"),
    "workers": ("4",),
    "micro_batches": ("8",),
    "tokens": ("100",),
    "diameter": ("1.5",),
}
ASKED: tuple[Callable[[Ledger], Any], ...] = (
    lambda ledger: ledger.verify(),
    lambda ledger: [ledger.status(account.name).figures for account in ledger.accounts()],
    lambda ledger: [ledger.lines(account.name) for account in ledger.accounts()],
    lambda ledger: ledger.entries("chat"),
    lambda ledger: ledger.output(_found(ledger, "run-0")),
    lambda ledger: ledger.reserve("chat", "run-1", "d", EVENT),
    lambda ledger: ledger.start(ledger.reserve("chat", "run-9", "d", EVENT)),
    lambda ledger: ledger.reserve("phones", "run-9", "d", EVENT, protection=Protection(kind=AccountKind.SELECTIVE)),
    lambda ledger: ledger.ensure_account("chat", *TERMS, corpus="mail"),
)
TERMS = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))


def _found(ledger: Ledger, release: str) -> Any:
    charge = ledger.find_charge("chat", release, "d")
    if charge is None:
        raise LedgerError("it is gone")
    return charge


def _sound_ledger(path: Path) -> str:
    with closing(Ledger.open(f"sqlite:///{path}")) as ledger:
        ledger.create_account("chat", *TERMS, corpus="mail")
        ledger.create_account("phones", *TERMS, corpus="mail", kind=AccountKind.SELECTIVE, policy="p")
        ledger.create_account("words", *TERMS, composition="metric", kind=AccountKind.METRIC_LOCAL)
        ledger.create_account("planned", *TERMS, composition="pld")
        ledger.create_account("curve", *TERMS, composition="rdp", order=8.0)
        ledger.register_plan("planned", [EVENT])
        for number in range(4):
            charge = ledger.reserve("chat", f"run-{number}", "d", EVENT)
            if number < 2:
                ledger.commit_output(ledger.start(charge, seconds=-1), b"x" * 100)
        ledger.renew(ledger.start(charge, holder="host:1:1", seconds=-1))
        ledger.cancel(ledger.reserve("planned", "run-0", "d", EVENT))
        ledger.reserve("phones", "run-0", "d", EVENT, protection=Protection(kind=AccountKind.SELECTIVE))
        head = ledger.head()
    with closing(sqlite3.connect(path)) as book:
        book.execute("PRAGMA journal_mode=DELETE")  # one file holds all of it
    return head


def _rows(path: Path) -> dict[str, list[Any]]:
    found = {}
    with closing(sqlite3.connect(path)) as book:
        for table in TABLES:
            names = [column.name for column in metadata.tables[table].columns if column.name not in UNHASHED]
            # In the order in which `verify` reads: a damaged row and its sound copy in an index may then differ unseen.
            found[table] = list(book.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {names[0]}"))
    return found


def _commands(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*names, name))
        else:
            yield (*names, name), command


def _invoke(arguments: list[str]) -> bool:
    """Run a command as the shell does; True when it answered."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")]
    code: Any = 0
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]), mock.patch("sys.argv", ["rayprivacy", *arguments]):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    answer, said = map(_written, streams)
    answer = answer.replace(arguments[-1], "")  # a path that was asked for may be called NaN
    if code == 0 and (NEVER.search(answer) or not all(figure >= 0 for figure in _epsilons(answer))):
        raise Nonsense(f"{arguments} prints {answer[-300:]!r}")
    if code not in (0, 1, 2, 3) or "Traceback" in said or (code and len(said) < 10):
        raise Nonsense(f"{arguments} ends with {code} and says {said[-300:]!r}")
    return bool(code == 0)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined,no-any-return]


def _epsilons(text: str) -> Iterator[float]:
    """Every epsilon, NaN included, in lines of JSON."""
    for line in text.splitlines():
        try:
            yield from _figures(json.loads(line), "")
        except (ValueError, RecursionError):
            continue


def _figures(value: Any, name: str) -> Iterator[float]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _figures(part, str(key))
    elif isinstance(value, list):
        for part in value:
            yield from _figures(part, name)
    elif isinstance(value, float) and ("epsilon" in name or value != value):
        yield value


def _check_event(value: Any) -> None:
    event = from_json(value)
    written = to_json(event)
    if from_json(json.loads(json.dumps(written, allow_nan=False))) != event:
        raise Nonsense(f"{value} does not come back")
    if any(type(leaf) is NonPrivateDpEvent for leaf, _ in leaves(event)):
        return
    (plain,), taken = without_thresholds([event])
    if taken < 0 or any(type(leaf) is ThresholdedGaussianDpEvent for leaf, _ in leaves(plain)):
        raise Nonsense(f"{value} keeps a threshold whose delta was taken off")
    costs = list(_costs(plain))
    if not all(cost > 0 and math.isfinite(cost) for cost in costs):
        raise Nonsense(f"{value} costs {[str(cost)[:30] for cost in costs]}")
    if not costs and not _only_pld(event):
        raise Nonsense(f"{value} is accepted and nothing prices it")


def _costs(event: Any) -> Iterator[Fraction | float]:
    for price in (gdp_cost, rho, lambda e: rdp(e, (2.0, 8.0))[0], lambda e: rdp(e, (2.0, 8.0))[1], document_epsilon):
        if price is document_epsilon and type(event) is not MetricLocalDpEvent:
            continue
        try:
            yield price(event)
        except EventError:
            continue


def _only_pld(event: Any) -> bool:
    """Whether it holds what no quick accountant takes: mixtures, and metric events inside compositions."""
    kinds = {type(leaf) for leaf, _ in leaves(event)}
    return bool(kinds & {MixtureOfGaussiansDpEvent, MetricLocalDpEvent}) or "repeat" in json.dumps(to_json(event))
