"""What an account says it protects: for good, told to its corpus, compared with every event, and certified."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import ComposedDpEvent, SelfComposedDpEvent
from handmade import Handmade, gaussian, gdp_cost, judge, refuse_next, replay, sampled, steps, times
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from usual import ADD, METRIC, SELECTIVE, TERMS, USER, certificate, exposures, kinds, refused, reserve
from usual import run as run_event

from rayprivacy.accounting import events
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent, from_json
from rayprivacy.cli import app
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, Protection
from rayprivacy.ledger.audit import prices as audited
from rayprivacy.ledger.certificate import EXPOSED_WARNING, Certificate, to_markdown
from rayprivacy.ledger.store import Ledger
from rayprivacy.reporting.claim import claim

CAP = Budget(50.0, 1e-6)
AUTHOR, THREAD = "user: author", "user: thread"
LIST, OTHER = "a" * 64, "b" * 64
EVERY = MetricLocalDpEvent(0.01, 1.0, 10)
SOME = MetricLocalDpEvent(0.01, 1.0, 10, 0.1, LIST)
OTHERS = MetricLocalDpEvent(0.01, 1.0, 10, 0.1, OTHER)
NOISE = GaussianDpEvent(20.0)


def run(ledger, account, release, event=NOISE, rung=0):
    run_event(ledger, account, release, event, rung)


def test_an_account_says_its_meaning_when_it_is_opened_and_keeps_it(ledger):
    for _ in range(2):
        ledger.ensure_account("talk", USER, ADD, CAP, of=AUTHOR)
    ledger.ensure_account("talk", USER, ADD, CAP)  # who says nothing contradicts nothing
    ledger.fix_meaning("talk", AUTHOR)
    assert ledger.account("talk").parameters == {"of": AUTHOR}
    for call in (ledger.fix_meaning, lambda name, of: ledger.ensure_account(name, USER, ADD, CAP, of=of)):
        refused("about 'user: thread' and account 'talk' is kept for 'user: author'", call, "talk", THREAD)
    assert kinds(ledger, "talk") == ["create"]


def test_an_account_of_before_takes_its_meaning_once_and_durably(ledger, url):
    run(ledger, "chat", "before")
    with Ledger.open(url) as other:
        assert other.account("chat").parameters == {}
        ledger.fix_meaning("chat", AUTHOR)
        refused("kept for 'user: author'", other.fix_meaning, "chat", THREAD)
    run(ledger, "chat", "after")
    ledger.fix_meaning("chat", AUTHOR)
    assert kinds(ledger).count("meaning") == 1
    with Ledger.open(url) as again:
        assert again.account("chat").parameters["of"] == AUTHOR
        assert again.accounts()[0].terms["parameters"] == {}, "what it was opened with stays as it was"
        refused("kept for 'user: author'", again.fix_meaning, "chat", THREAD)
    assert ledger.verify().charges == 2


def test_a_meaning_that_an_account_cannot_have_opens_nothing(ledger):
    wrong: tuple[dict[str, Any], ...] = tuple(
        {"of": of} for of in ("record: author", "author", "user: a\nb", "user: " + "a" * 2000)
    )
    for more in (*wrong, {"protected": ""}, {"kind": METRIC, "composition": "metric", "protected": "words"}):
        with pytest.raises(ConfigError):
            ledger.create_account("talk", USER, ADD, CAP, **more)
    for more in wrong:
        with pytest.raises(ConfigError):
            ledger.fix_meaning("chat", more["of"])
    assert ledger.verify().entries == 1


def words(ledger, name="words", **more):
    ledger.create_account(name, USER, ADD, CAP, "metric", kind=METRIC, **more)


def test_a_metric_local_account_protects_the_words_of_its_first_release(ledger):
    words(ledger)
    with pytest.raises(BudgetRefusedError, match=r"lower privacy\.epsilon"):
        run(ledger, "words", "dear", MetricLocalDpEvent(1.0, 1.0, 1000))
    assert ledger.account("words").parameters == {}, "what was refused fixes nothing"
    run(ledger, "words", "first", SOME)
    assert ledger.account("words").parameters == {"protected": LIST}
    run(ledger, "words", "with labels", ComposedDpEvent([SOME, EVERY]))
    before = ledger.entries("words")
    for event in (EVERY, OTHERS, ComposedDpEvent([SOME, OTHERS]), SelfComposedDpEvent(OTHERS, 2)):
        for call in (run, lambda ledger, name, _, event: ledger.check(name, event, Protection(kind=METRIC))):
            with pytest.raises((LedgerError, EventError), match=r"words of list|two lists"):
                call(ledger, "words", "another", event)
    assert ledger.entries("words") == before
    assert ledger.verify().charges == 2


def test_racing_releases_of_two_lists_are_not_both_admitted(ledger, url):
    words(ledger)
    with Ledger.open(url) as other:
        for book in (ledger, other):
            book.check("words", EVERY, Protection(kind=METRIC))  # both know an account that says nothing
            book.check("words", SOME, Protection(kind=METRIC))
        run(other, "words", "one", EVERY)
        with pytest.raises((LedgerError, EventError), match="all words"):
            run(ledger, "words", "two", SOME)
    assert ledger.verify().charges == 1


def test_a_plan_tells_which_words_a_new_account_protects(ledger):
    words(ledger, plan=[SOME, EVERY])
    assert ledger.account("words").parameters == {"protected": LIST}
    with pytest.raises(LedgerError, match="about all words and account 'words' is kept for the words of list aaaaaaaa"):
        ledger.ensure_account("words", USER, ADD, CAP, "metric", kind=METRIC, plan=[EVERY])


def test_accounts_of_one_corpus_that_mean_other_things_expose_each_other(ledger):
    for name, of in (("authors", AUTHOR), ("threads", THREAD), ("again", AUTHOR)):
        ledger.create_account(name, USER, ADD, CAP, corpus="mail", of=of)
    ledger.create_account("silent", USER, ADD, CAP, corpus="mail")
    ledger.create_account("elsewhere", USER, ADD, CAP, corpus="news", of=THREAD)
    for name in ("authors", "threads", "silent"):
        run(ledger, name, f"by {name}")
    assert exposures(ledger, "authors") == exposures(ledger, "again") == ["by threads"]
    assert exposures(ledger, "threads") == ["by authors"]
    assert exposures(ledger, "silent") == exposures(ledger, "elsewhere") == exposures(ledger, "chat") == []
    ledger.fix_meaning("silent", AUTHOR)  # what it was charged is about authors, and others are not
    assert exposures(ledger, "silent") == ["by threads"]
    assert exposures(ledger, "threads") == ["by authors", "by silent"]
    ledger.create_account("late", USER, ADD, CAP, corpus="mail", of=THREAD)
    assert exposures(ledger, "late") == ["by authors", "by silent"]
    assert ledger.verify().charges == 3


def test_accounts_of_two_lists_or_of_two_policies_expose_each_other(ledger):
    for name, event in (("all", EVERY), ("some", SOME)):
        words(ledger, name, corpus="mail")
        run(ledger, name, f"of {name}", event)
    for policy in ("names", "places"):
        ledger.create_account(policy, USER, ADD, CAP, kind=SELECTIVE, policy=policy, corpus="news", of=AUTHOR)
    run(ledger, "names", "of names")
    found = {name: exposures(ledger, name) for name in ("all", "some", "names", "places")}
    assert found == {"all": ["of some"], "some": ["of all"], "names": [], "places": ["of names"]}
    assert ledger.verify().charges == 3


# An exposure that a central account pays for.


def _paid(ledger, composition, event, of=AUTHOR):
    """Whether a central account that started this pays for a selective run, so that none is exposed."""
    more: dict[str, Any] = {"order": 8.0} if composition == "rdp" else {}
    more |= {"plan": [SelfComposedDpEvent(NOISE, 6)]} if composition == "pld" else {}
    ledger.create_account("central", USER, ADD, CAP, composition, corpus="mail", of=of, **more)
    ledger.create_account("policy", USER, ADD, CAP, kind=SELECTIVE, policy="p", corpus="mail", of=AUTHOR)
    ledger.start(ledger.reserve("central", "run", "d", event, rung=1))
    run(ledger, "policy", "run", SelfComposedDpEvent(NOISE, 2), rung=1)
    ledger.create_account("late", USER, ADD, CAP, corpus="mail", of=of)
    assert exposures(ledger, "central") == exposures(ledger, "late")
    assert ledger.verify().charges == 2
    return exposures(ledger, "central") == []


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
@pytest.mark.parametrize(("times", "pays"), [(1, False), (2, True)])
def test_an_exposure_is_spared_by_a_charge_that_costs_as_much_as_what_is_drawn(ledger, composition, times, pays):
    assert _paid(ledger, composition, SelfComposedDpEvent(NOISE, times)) is pays


def test_next_to_nothing_buys_no_exposure_off(ledger):
    assert not _paid(ledger, "gdp", GaussianDpEvent(1e6))


def test_what_another_unit_pays_buys_no_exposure_off(ledger):
    """Selective by author, and central by thread: the author's epsilon of what is drawn is bounded by nobody."""
    ledger.create_account("authors", USER, ADD, CAP, corpus="mail", of=AUTHOR)
    _paid(ledger, "gdp", SelfComposedDpEvent(NOISE, 3), of=THREAD)
    assert exposures(ledger, "authors") == ["run", "run"]  # the central run by thread, and the selective one
    assert ledger.verify().charges == 2


def exposing(composition="gdp", size=1):
    book = Handmade().open("central", composition, corpus="mail", size=size)
    return book.open("policy", kind="selective", corpus="mail", parameters={"policy": "names"})


def test_an_auditor_finds_an_exposure_that_was_bought_off():
    for sigma, price in ((1e6, steps(1e-12)), (12.0, gdp_cost(12.0)[0])):
        book = exposing()
        book.lease("start", book.reserve("central", "run", gaussian(sigma), [price]))
        book.reserve("policy", "run", gaussian(6.0), gdp_cost(6.0))
        refuse_next(book, 'the end .* exposure entry of account "central" is due')
        book.expose("central", "policy", "selective", "run")
        assert replay(book.rows).charges == 2


def test_an_auditor_compares_plans_run_by_run():
    for many, due in ((3, False), (1, True)):
        book = exposing("pld", 0)
        book.plan("central", [(sampled(0.01, 1.0), 200), (gaussian(20.0), 10)], 1.29082)
        book.lease("start", book.reserve("central", "run", times(many, gaussian(20.0)), [0, many]))
        book.reserve("policy", "run", times(2, gaussian(21.0)), gdp_cost(21.0, 21.0))
        judge(book, not due, "is due")


# Books that somebody wrote anew.


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
def test_a_forged_meaning_is_found(kind, said, match):
    terms = ("a", "metric" if kind == "metric-local" else "gdp", 3.0, kind)
    book = Handmade().open(*terms)
    for each in said:
        book.say("a", **each)
    refuse_next(book, match)
    if said[-1] not in ({}, {"of": AUTHOR}):
        refuse_next(Handmade().open(*terms, parameters=said[-1]), match)


def test_an_auditor_finds_words_that_an_account_does_not_protect():
    event = {"kind": "metric-local", "epsilon": 0.5, "diameter": 1.5, "tokens": 100}
    sensitive = event | {"kind": "metric-local-sensitive", "keep_cost": 0.5, "sensitive": LIST}
    for said, paid, price in (
        ({"protected": ""}, sensitive, 125),
        ({"protected": LIST}, event, 75),
        ({"protected": OTHER}, sensitive, 125),
        ({"of": AUTHOR}, event, 75),
    ):
        book = Handmade().open("words", "metric", 500.0, kind="metric-local")
        book.say("words", **said)
        book.reserve("words", "run", paid, [price * 2**80])
        refuse_next(book, "protects other words than account 'words'")


# What people read.


def test_certificate_and_report_name_what_is_protected(ledger):
    ledger.create_account("talk", USER, ADD, CAP, of=AUTHOR)
    words(ledger, plan=[SOME], of="user: author; words of text")
    words(ledger, "all", plan=[EVERY], of="user: author; words of text")
    for name, event, said in (
        ("talk", NOISE, ("user (users, by column 'author')",)),
        ("words", SOME, ("token, for the words of list aaaaaaaaaaaaaaaa, with", "by column 'author'; words of text")),
        ("all", EVERY, ("token by token, for all words, with epsilon",)),
    ):
        run(ledger, name, f"by {name}", event)
        found = certificate(ledger, name, f"by {name}")
        for text in (to_markdown(found), claim(Certificate.model_validate(found))):
            assert all(each in text for each in said)


def test_the_commands_take_and_show_a_meaning(sqlite_url, tmp_path):
    new = ("create", "--epsilon", "8", "--account")
    assert "talk: protects users, by column 'author'." in _say(sqlite_url, *new, "talk", "--of", AUTHOR)
    _say(sqlite_url, *new, "old")
    with Ledger.open(sqlite_url) as ledger:
        ledger.fix_meaning("old", THREAD)
    assert "old: protects users, by column 'thread'." in _say(sqlite_url, "show")
    _say(sqlite_url, "export", "--out", str(tmp_path / "export"))
    accounts = json.loads((tmp_path / "export" / "summary.json").read_text())["accounts"]
    assert accounts[0]["terms"]["parameters"] == {"of": THREAD}


def _say(url, *words):
    done = CliRunner().invoke(app, ["ledger", *words, "--ledger", url])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


# Of every parameter of every event: does it say WHO is protected? Then two events that differ in it never add up.


HOW_WELL = {
    *("noise_multiplier", "sampling_probability", "standard_deviation", "sensitivities", "sampling_probs"),
    *("epsilon", "diameter", "tokens", "keep_cost", "count", "mean", "shape", "delta"),
}
PARTS = {"event", "events"}
WHO = {"sensitive"}
PRICED = {"epsilon": 0.01, "diameter": 1.0, "tokens": 5}
LISTS = st.sampled_from(["", *(digit * 64 for digit in "abc")])


def metric(protected):
    if not protected:
        return {"kind": "metric-local", **PRICED}
    return {"kind": "metric-local-sensitive", **PRICED, "keep_cost": 0.01, "sensitive": protected}


def test_every_parameter_of_every_event_is_classified():
    """A new one must be put into one of the lists; one that says who is protected must be compared on admission."""
    for known in (events._KEYS, audited._KEYS):
        found = {name for keys in known.values() for name in keys}
        assert found == HOW_WELL | PARTS | WHO


def nested(event, depth):
    return event if not depth else {"kind": "self-composed", "count": 2, "event": nested(event, depth - 1)}


@given(lists=st.lists(st.tuples(LISTS, st.integers(0, 3)), min_size=2, max_size=4))
def test_events_that_protect_different_words_are_never_admitted_together(lists, tmp_path_factory, empty_book):
    path = tmp_path_factory.mktemp("lists") / "ledger.db"
    path.write_bytes(empty_book)
    words = Protection(kind=AccountKind.METRIC_LOCAL)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.create_account("words", USER, ADD, Budget(50.0, 1e-6), "metric", kind=words.kind)
        first = lists[0][0]
        for number, (protected, depth) in enumerate(lists):
            event = from_json(nested(metric(protected), depth))
            admitted = nullcontext() if protected == first else pytest.raises(LedgerError, match="epsilons do not add")
            with admitted:
                ledger.reserve("words", f"run-{number}", "d", event, protection=words)
        assert ledger.verify().charges == sum(protected == first for protected, _ in lists)


@given(lists=st.lists(LISTS, min_size=1, max_size=4))
def test_one_event_protects_the_words_of_one_list(lists):
    event = from_json({"kind": "composed", "events": [metric(protected) for protected in lists]})
    named = set(lists) - {""}
    if len(named) > 1:
        with pytest.raises(EventError, match="words of two lists"):
            events.protected_by(event)
    else:
        assert events.protected_by(event) == next(iter(named), "")


@pytest.mark.parametrize("one", AccountKind)
def test_events_of_another_kind_of_guarantee_are_refused(one, ledger):
    more: dict[str, Any] = {"policy": "p"} if one is AccountKind.SELECTIVE else {}
    composition = "metric" if one is AccountKind.METRIC_LOCAL else "gdp"
    ledger.create_account("one", USER, ADD, Budget(50.0, 1e-6), composition, kind=one, **more)
    for other in set(AccountKind) - {one}:
        local = other is AccountKind.METRIC_LOCAL
        event = from_json(metric("") if local else {"kind": "gaussian", "noise_multiplier": 20.0})
        with pytest.raises((LedgerError, EventError), match="kept for"):
            ledger.reserve("one", "run", "d", event, protection=Protection(kind=other))


# The certificate claims the cap, lists every event, and does not move when the run is resumed.


HUNDRED = SelfComposedDpEvent(GaussianDpEvent(sigma_for(100, Budget(1.0, 1e-6))), 100)


def test_the_claim_is_the_cap_and_the_rest_a_diagnostic(ledger):
    run(ledger, "chat", "run", HUNDRED)
    found = certificate(ledger)
    assert (found["epsilon"], found["delta"]) == (3.0, 1e-6)
    spent = found["spent_diagnostic"]
    assert spent["label"] == "diagnostic, not the claim"
    assert spent["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert spent["left"] == ledger.status("chat").epsilon_remaining
    assert 1.0 < spent["epsilon_zcdp"] <= spent["epsilon_rdp"] * 1.001 < 1.1
    assert [(row["kind"], row["count"], row["q"]) for row in found["events"]] == [("gaussian", 100, None)]
    assert found["warnings"] == []
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_it_stands_still_while_the_ledger_moves_on(ledger):
    reserve(ledger, "chat", "run", HUNDRED)
    refused("finish the run", certificate, ledger)
    run(ledger, "chat", "run", HUNDRED)
    head, before = ledger.head(), certificate(ledger)
    for release in ("later", "run"):
        run(ledger, "chat", release, HUNDRED)
    assert certificate(ledger) == before
    assert before["ledger_head"] == head != ledger.head()


def test_the_published_schema_is_that_of_the_model_and_fits(ledger):
    published = json.loads((Path(__file__).parents[3] / "docs" / "certificate.schema.json").read_text())
    assert published == Certificate.model_json_schema(), "run: rayprivacy schema --certificate"
    run(ledger, "chat", "run", HUNDRED)
    found = certificate(ledger)
    jsonschema.validate(found, published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | {"epsilon": -1}, published)
    assert "not private: test key" in to_markdown(certificate(ledger, test_key=True))


def test_it_names_what_else_was_done_with_the_corpus(url):
    ledger = Ledger.open(url)
    for name in ("chat", "chat-2"):
        ledger.create_account(name, *TERMS, corpus="talk")
    ledger.create_account("jft", *TERMS, kind=SELECTIVE, corpus="talk", policy="names")
    run(ledger, "chat", "before", HUNDRED)
    reserve(ledger, "jft", "redacted", GaussianDpEvent(9.0))
    run(ledger, "chat", "run", HUNDRED)
    before, found = certificate(ledger, release="before"), certificate(ledger)
    assert (before["exposures"], before["warnings"]) == ([], [])
    assert found["exposures"] == [{"account": "jft", "kind": "selective", "release_id": "redacted"}]
    assert found["warnings"] == [EXPOSED_WARNING]
    assert {other["account"] for other in found["other_accounts"]} == {"chat-2", "jft"}
    text = to_markdown(found)
    assert "counts as non-private" in text
    assert "`chat-2` (central, user, add-or-remove) may release at epsilon = 3" in text
