"""What an account says it protects: when it is opened or by its first release, for good, and told to its corpus."""

import json
from pathlib import Path
from typing import Any

import pytest
from backdoor import Backdoor
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from handmade import Handmade, gaussian, gdp_cost, judge, refuse_next, replay, sampled, steps
from typer.testing import CliRunner
from usual import ADD, METRIC, SELECTIVE, USER, certificate, exposures
from usual import run as run_event

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.cli import app
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError
from rayprivacy.core.units import Budget, Protection
from rayprivacy.ledger.certificate import Certificate, to_markdown
from rayprivacy.ledger.store import Ledger
from rayprivacy.reporting.claim import claim

CAP = Budget(50.0, 1e-6)
AUTHOR, THREAD = "user: author", "user: thread"
LIST, OTHER = "a" * 64, "b" * 64
EVERY = MetricLocalDpEvent(0.01, 1.0, 10)
SOME = MetricLocalDpEvent(0.01, 1.0, 10, 0.1, LIST)
OTHERS = MetricLocalDpEvent(0.01, 1.0, 10, 0.1, OTHER)
NOISE = GaussianDpEvent(20.0)


def run(ledger: Ledger, account: str, release: str, event: DpEvent = NOISE, rung: int = 0) -> None:
    run_event(ledger, account, release, event, rung)


def test_an_account_says_its_meaning_when_it_is_opened_and_keeps_it(ledger: Ledger) -> None:
    ledger.create_account("talk", USER, ADD, CAP, of=AUTHOR)
    assert ledger.account("talk").parameters == {"of": AUTHOR}
    ledger.ensure_account("talk", USER, ADD, CAP, of=AUTHOR)
    ledger.ensure_account("talk", USER, ADD, CAP)  # who says nothing contradicts nothing
    ledger.fix_meaning("talk", AUTHOR)
    for call in (lambda: ledger.ensure_account("talk", USER, ADD, CAP, of=THREAD), lambda: fix(ledger, "talk", THREAD)):
        with pytest.raises(LedgerError, match="about 'user: thread' and account 'talk' is kept for 'user: author'"):
            call()
    assert [entry.kind for entry in ledger.entries("talk")] == ["create"]


def fix(ledger: Ledger, account: str, of: str) -> None:
    ledger.fix_meaning(account, of)


def test_an_account_of_before_takes_its_meaning_once_and_durably(ledger: Ledger, url: str) -> None:
    run(ledger, "chat", "before")
    fix(ledger, "chat", AUTHOR)
    run(ledger, "chat", "after")
    fix(ledger, "chat", AUTHOR)
    assert [entry.kind for entry in ledger.entries("chat")].count("meaning") == 1
    with Ledger.open(url) as again:
        assert again.account("chat").parameters["of"] == AUTHOR
        assert again.accounts()[0].terms["parameters"] == {}, "what it was opened with stays as it was"
        with pytest.raises(LedgerError, match="kept for 'user: author'"):
            fix(again, "chat", THREAD)
    assert ledger.verify().charges == 2


def test_another_process_that_says_something_else_is_refused(ledger: Ledger, url: str) -> None:
    with Ledger.open(url) as other:
        assert other.account("chat").parameters == ledger.account("chat").parameters == {}
        fix(other, "chat", THREAD)
    with pytest.raises(LedgerError, match="kept for 'user: thread'"):
        fix(ledger, "chat", AUTHOR)
    assert ledger.account("chat").parameters["of"] == THREAD


@pytest.mark.parametrize(
    "more",
    [
        {"of": "record: author"},
        {"of": "author"},
        {"of": "user: a\nb"},
        {"of": "user: " + "a" * 2000},
        {"protected": ""},
        {"kind": METRIC, "composition": "metric", "protected": "words"},
    ],
)
def test_a_meaning_that_an_account_cannot_have_opens_nothing(ledger: Ledger, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ledger.create_account("talk", USER, ADD, CAP, **more)
    if set(more) == {"of"}:
        with pytest.raises(ConfigError):
            fix(ledger, "chat", more["of"])
    assert ledger.verify().entries == 1


def words(ledger: Ledger, name: str = "words", **more: Any) -> None:
    ledger.create_account(name, USER, ADD, CAP, "metric", kind=METRIC, **more)


def test_a_metric_local_account_protects_the_words_of_its_first_release(ledger: Ledger) -> None:
    words(ledger)
    run(ledger, "words", "first", SOME)
    assert ledger.account("words").parameters == {"protected": LIST}
    run(ledger, "words", "with labels", ComposedDpEvent([SOME, EVERY]))
    for event in (EVERY, OTHERS, ComposedDpEvent([SOME, OTHERS]), SelfComposedDpEvent(OTHERS, 2)):
        before = ledger.entries("words")
        for call in (run, lambda ledger, name, _, event: ledger.check(name, event, Protection(kind=METRIC))):
            with pytest.raises((LedgerError, EventError), match=r"words of list|two lists"):
                call(ledger, "words", "another", event)
        assert ledger.entries("words") == before
    assert ledger.verify().charges == 2


def test_racing_releases_of_two_lists_are_not_both_admitted(ledger: Ledger, url: str) -> None:
    words(ledger)
    with Ledger.open(url) as other:
        for book in (ledger, other):
            book.check("words", EVERY, Protection(kind=METRIC))  # both know an account that says nothing
            book.check("words", SOME, Protection(kind=METRIC))
        run(other, "words", "one", EVERY)
        with pytest.raises((LedgerError, EventError), match="all words"):
            run(ledger, "words", "two", SOME)
    assert ledger.verify().charges == 1


def test_a_plan_tells_which_words_a_new_account_protects(ledger: Ledger) -> None:
    words(ledger, plan=[SOME, EVERY])
    assert ledger.account("words").parameters == {"protected": LIST}
    with pytest.raises(LedgerError, match="about all words and account 'words' is kept for the words of list aaaaaaaa"):
        ledger.ensure_account("words", USER, ADD, CAP, "metric", kind=METRIC, plan=[EVERY])


def test_a_refused_release_fixes_nothing(ledger: Ledger) -> None:
    words(ledger)
    with pytest.raises(BudgetRefusedError, match=r"lower privacy\.epsilon"):
        run(ledger, "words", "dear", MetricLocalDpEvent(1.0, 1.0, 1000))
    assert ledger.account("words").parameters == {}
    run(ledger, "words", "first", SOME)


def test_accounts_of_one_corpus_that_mean_other_things_expose_each_other(ledger: Ledger) -> None:
    for name, of in (("authors", AUTHOR), ("threads", THREAD), ("again", AUTHOR)):
        ledger.create_account(name, USER, ADD, CAP, corpus="mail", of=of)
    ledger.create_account("silent", USER, ADD, CAP, corpus="mail")
    ledger.create_account("elsewhere", USER, ADD, CAP, corpus="news", of=THREAD)
    for name in ("authors", "threads", "silent"):
        run(ledger, name, f"by {name}")
    assert exposures(ledger, "authors") == exposures(ledger, "again") == ["by threads"]
    assert exposures(ledger, "threads") == ["by authors"]
    assert exposures(ledger, "silent") == exposures(ledger, "elsewhere") == exposures(ledger, "chat") == []
    fix(ledger, "silent", AUTHOR)  # what it was charged is about authors, and what it was exposed to is known now
    assert exposures(ledger, "silent") == ["by threads"]
    assert exposures(ledger, "threads") == ["by authors", "by silent"]
    ledger.create_account("late", USER, ADD, CAP, corpus="mail", of=THREAD)
    assert exposures(ledger, "late") == ["by authors", "by silent"]
    assert ledger.verify().charges == 3


def test_metric_local_accounts_of_two_lists_expose_each_other(ledger: Ledger) -> None:
    words(ledger, "all", corpus="mail")
    words(ledger, "some", corpus="mail")
    run(ledger, "all", "of all", EVERY)
    run(ledger, "some", "of some", SOME)
    assert exposures(ledger, "all") == ["of some"]
    assert exposures(ledger, "some") == ["of all"]
    assert ledger.verify().charges == 2


def test_two_policies_of_one_corpus_expose_each_other(ledger: Ledger) -> None:
    for policy in ("names", "places"):
        ledger.create_account(policy, USER, ADD, CAP, kind=SELECTIVE, policy=policy, corpus="mail", of=AUTHOR)
    run(ledger, "names", "of names")
    assert exposures(ledger, "places") == ["of names"]
    assert exposures(ledger, "names") == []
    assert ledger.verify().charges == 1


# An exposure that a central account pays for.

STEPS = SelfComposedDpEvent(NOISE, 2)


def _paid(ledger: Ledger, composition: str, event: DpEvent, of: str = AUTHOR, selective: DpEvent = STEPS) -> bool:
    """Whether a central account that started this pays for a selective run, so that none is exposed."""
    more: dict[str, Any] = {"order": 8.0} if composition == "rdp" else {}
    more |= {"plan": [SelfComposedDpEvent(GaussianDpEvent(20.0), 6)]} if composition == "pld" else {}
    ledger.create_account("central", USER, ADD, CAP, composition, corpus="mail", of=of, **more)
    ledger.create_account("policy", USER, ADD, CAP, kind=SELECTIVE, policy="p", corpus="mail", of=AUTHOR)
    ledger.start(ledger.reserve("central", "run", "d", event, rung=1))
    run(ledger, "policy", "run", selective, rung=1)
    ledger.create_account("late", USER, ADD, CAP, corpus="mail", of=of)
    assert exposures(ledger, "central") == exposures(ledger, "late")
    assert ledger.verify().charges == 2
    return exposures(ledger, "central") == []


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
@pytest.mark.parametrize(("times", "pays"), [(1, False), (2, True), (3, True)])
def test_an_exposure_is_spared_by_a_charge_that_costs_as_much_as_what_is_drawn(
    ledger: Ledger, composition: str, times: int, pays: bool
) -> None:
    assert _paid(ledger, composition, SelfComposedDpEvent(NOISE, times)) is pays


def test_next_to_nothing_buys_no_exposure_off(ledger: Ledger) -> None:
    assert not _paid(ledger, "gdp", GaussianDpEvent(1e6))


def test_what_another_unit_pays_buys_no_exposure_off(ledger: Ledger) -> None:
    """Selective by author, and central by thread: the author's epsilon of what is drawn is bounded by nobody."""
    ledger.create_account("authors", USER, ADD, CAP, corpus="mail", of=AUTHOR)
    _paid(ledger, "gdp", SelfComposedDpEvent(NOISE, 3), of=THREAD)
    assert exposures(ledger, "authors") == ["run", "run"]  # the central run by thread, and the selective one
    assert ledger.verify().charges == 2


def test_an_auditor_finds_an_exposure_that_was_bought_off() -> None:
    for sigma, price in ((1e6, steps(1e-12)), (12.0, gdp_cost(12.0)[0])):
        book = Handmade().open("central", corpus="mail")
        book.open("policy", kind="selective", corpus="mail", parameters={"policy": "names"})
        book.lease("start", book.reserve("central", "run", gaussian(sigma), [price]))
        book.reserve("policy", "run", gaussian(6.0), gdp_cost(6.0))
        refuse_next(book, 'the end .* exposure entry of account "central" is due')
        book.expose("central", "policy", "selective", "run")
        assert replay(book.rows).charges == 2


def test_an_auditor_compares_plans_run_by_run() -> None:
    for many, due in ((3, False), (1, True)):
        book = Handmade().open("central", "pld", corpus="mail", size=0)
        book.plan("central", [(sampled(0.01, 1.0), 200), (gaussian(20.0), 10)], 1.29082)
        book.open("policy", kind="selective", corpus="mail", parameters={"policy": "names"})
        event = {"kind": "self-composed", "count": many, "event": gaussian(20.0)}
        book.lease("start", book.reserve("central", "run", event, [0, many]))
        twice = {"kind": "self-composed", "count": 2, "event": gaussian(21.0)}
        book.reserve("policy", "run", twice, gdp_cost(21.0, 21.0))
        judge(book, not due, "is due")


# Books that somebody wrote anew.

METRIC_EVENT = {"kind": "metric-local", "epsilon": 0.5, "diameter": 1.5, "tokens": 100}
SENSITIVE = METRIC_EVENT | {"kind": "metric-local-sensitive", "keep_cost": 0.5, "sensitive": LIST}
PRICE = [75 * 2**80]


@pytest.mark.parametrize(
    ("kind", "said", "match"),
    [
        ("central", [{}], "says nothing"),
        ("central", [{"of": AUTHOR}, {"of": AUTHOR}], "says it twice"),
        ("central", [{"of": "record: author"}], "another unit"),
        ("central", [{"of": 1}], "no text"),
        ("central", [{"protected": ""}], "not metric-local"),
        ("central", [{"epsilon": "9"}], "another JSON object"),
        ("metric-local", [{"protected": "words"}], "no digest"),
    ],
)
def test_a_forged_meaning_is_found(kind: str, said: list[dict[str, Any]], match: str) -> None:
    book = Handmade().open("a", "metric" if kind == "metric-local" else "gdp", kind=kind)
    for each in said:
        book.say("a", **each)
    refuse_next(book, match)
    book = Handmade().open("a", "metric" if kind == "metric-local" else "gdp", kind=kind, parameters=said[-1])
    if said[-1] not in ({}, {"of": AUTHOR}):
        refuse_next(book, match)


def test_an_auditor_finds_words_that_an_account_does_not_protect() -> None:
    for said, event, price in (
        ({"protected": ""}, SENSITIVE, [125 * 2**80]),
        ({"protected": LIST}, METRIC_EVENT, PRICE),
        ({"protected": OTHER}, SENSITIVE, [125 * 2**80]),
        ({"of": AUTHOR}, METRIC_EVENT, PRICE),
    ):
        book = Handmade().open("words", "metric", 500.0, kind="metric-local")
        book.say("words", **said)
        book.reserve("words", "run", event, price)
        refuse_next(book, "protects other words than account 'words'")


def test_a_meaning_cannot_be_taken_out_of_a_database(ledger: Ledger, backdoor: Backdoor) -> None:
    fix(ledger, "chat", AUTHOR)
    backdoor.execute("UPDATE entries SET detail = ? WHERE kind = 'meaning'", json.dumps({"of": THREAD}))
    with pytest.raises(LedgerError, match="entry 2"):
        ledger.verify()


# What people read.


def test_certificate_and_report_name_what_is_protected(ledger: Ledger) -> None:
    ledger.create_account("talk", USER, ADD, CAP, of=AUTHOR)
    words(ledger, plan=[SOME], of="user: author; words of text")
    words(ledger, "all", plan=[EVERY], of="user: author; words of text")
    for name, event in (("talk", NOISE), ("words", SOME), ("all", EVERY)):
        run(ledger, name, f"by {name}", event)
    said = {name: certificate(ledger, name, f"by {name}") for name in ("talk", "words", "all")}
    assert "Protected unit: user (users, by column 'author')." in to_markdown(said["talk"])
    assert "(unit: user (users, by column 'author'), relation: add-or-remove)" in _claim(said["talk"])
    for text in (to_markdown(said["words"]), _claim(said["words"])):
        assert "token by token, for the words of list aaaaaaaaaaaaaaaa, with epsilon" in text
        assert "users, by column 'author'; words of text" in text
    assert "token by token, for all words, with epsilon" in to_markdown(said["all"])
    assert "token by token, for all words, with epsilon" in _claim(said["all"])


def _claim(certificate: dict[str, Any]) -> str:
    return claim(Certificate.model_validate(certificate))


def test_a_certificate_of_before_stays_what_it_was(ledger: Ledger) -> None:
    run(ledger, "chat", "before")
    written = certificate(ledger, "chat", "before")
    fix(ledger, "chat", AUTHOR)
    run(ledger, "chat", "after")
    assert certificate(ledger, "chat", "before") == written
    assert certificate(ledger, "chat", "after")["parameters"] == {"of": AUTHOR}


def test_the_commands_take_and_show_a_meaning(sqlite_url: str, tmp_path: Path) -> None:
    place = ("--ledger", sqlite_url)
    opened = _say("ledger", "create", *place, "--account", "talk", "--epsilon", "8", "--of", AUTHOR)
    assert "talk: protects users, by column 'author'." in opened
    _say("ledger", "create", *place, "--account", "old", "--epsilon", "8")
    with Ledger.open(sqlite_url) as ledger:
        for name in ("talk", "old"):
            run(ledger, name, f"by {name}")
        fix(ledger, "old", THREAD)
    assert "old: protects users, by column 'thread'." in _say("ledger", "show", *place)
    folder = str(tmp_path / "export")
    _say("ledger", "export", *place, "--out", folder)
    assert json.loads((tmp_path / "export" / "summary.json").read_text())["accounts"][0]["terms"]["parameters"] == {
        "of": THREAD
    }


def _say(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())
