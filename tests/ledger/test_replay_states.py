"""States, leases, rungs and exposures in a book with consistent hashes."""

import pytest
from handmade import Handmade, gaussian, gdp_cost, refuse_next, replay


def started() -> tuple[Handmade, str]:
    book = Handmade().open("a")
    charge = book.reserve("a", "run", gaussian(5.0), gdp_cost(5.0))
    book.lease("start", charge)
    return book, charge


def test_a_stale_token_does_not_commit() -> None:
    book, charge = started()
    book.lease("takeover", charge, 2, "you")
    book.commit(charge, 1)
    refuse_next(book, "entry 5 .* token that was taken over")


@pytest.mark.parametrize(
    ("kind", "token", "holder"), [("takeover", 1, "you"), ("takeover", 3, "you"), ("renew", 2, "me"), ("renew", 1, "x")]
)
def test_tokens_follow_one_another(kind: str, token: int, holder: str) -> None:
    book, charge = started()
    book.lease(kind, charge, token, holder)
    refuse_next(book, "entry 4 .* token")


@pytest.mark.parametrize("kind", ["start", "cancel", "reserve"])
def test_no_way_back_after_start(kind: str) -> None:
    book, charge = started()
    if kind == "reserve":
        book.reserve("a", "other", gaussian(5.0), gdp_cost(5.0), name=charge)
    else:
        book.step(kind, charge)
    refuse_next(book, "entry 4")


def test_nothing_follows_a_commit() -> None:
    for kind in ("start", "renew", "takeover", "commit", "cancel"):
        book, charge = started()
        book.commit(charge)
        book.step(kind, charge)
        refuse_next(book, f"entry 5 .* cannot {kind}")


def test_one_live_charge_for_one_release_and_input() -> None:
    book, _ = started()
    book.reserve("a", "run", gaussian(5.0), gdp_cost(5.0), name="again")
    refuse_next(book, "entry 4 .* charges one release and input twice")


def test_rungs_come_one_by_one() -> None:
    book = Handmade().open("a")
    first = book.reserve("a", "run", gaussian(40.0), gdp_cost(40.0), 1)
    book.reserve("a", "run", gaussian(40.0), gdp_cost(40.0), 3)
    refuse_next(book, "entry 3 .* rung 3 of a release whose rung 2")
    book = Handmade().open("a")
    first = book.reserve("a", "run", gaussian(40.0), gdp_cost(40.0), 1)
    book.step("cancel", first)
    book.reserve("a", "run", gaussian(40.0), gdp_cost(40.0), 2)
    refuse_next(book, "entry 4 .* rung 2 of a release whose rung 1")


def selective() -> Handmade:
    book = Handmade().open("c1", corpus="mail").open("c2", corpus="mail").open("elsewhere", corpus="news")
    return book.open("s", kind="selective", corpus="mail", parameters={"policy": "names"})


def test_exposures_are_recorded_in_every_central_account_of_the_corpus() -> None:
    book = selective()
    charge = book.reserve("s", "run", gaussian(6.0), gdp_cost(6.0))
    refuse_next(book, "the end .* 'c1'|the end .*c1")
    book.expose("c2", "s", "selective", "run")
    refuse_next(book, "the end .*c1")
    book.expose("c1", "s", "selective", "run")
    assert replay(book.rows).charges == 1
    book.step("cancel", charge)
    book.open("c3", corpus="mail")  # nothing ran: nothing to record
    assert replay(book.rows).accounts == 5


def test_a_rung_that_a_central_account_pays_for_exposes_nobody() -> None:
    book = selective()
    book.release("c1", "run", gaussian(6.0), gdp_cost(6.0))
    book.reserve("s", "run", gaussian(6.0), gdp_cost(6.0))
    book.open("c3", corpus="mail")
    assert replay(book.rows).charges == 2
    book.expose("c2", "s", "selective", "run")
    refuse_next(book, "no charge calls for")
    for account, started in (("c1", False), ("elsewhere", True)):  # it may be cancelled, or is of another corpus
        book = selective()
        paid = book.reserve(account, "run", gaussian(6.0), gdp_cost(6.0))
        if started:
            book.lease("start", paid)
        book.reserve("s", "run", gaussian(6.0), gdp_cost(6.0))
        refuse_next(book, "the end .* is due")


def test_an_exposure_cannot_wait() -> None:
    book = selective()
    charge = book.reserve("s", "run", gaussian(6.0), gdp_cost(6.0))
    book.expose("c1", "s", "selective", "run")
    book.lease("start", charge)
    book.expose("c2", "s", "selective", "run")
    refuse_next(book, "entry 7 .* is due")


@pytest.mark.parametrize(
    ("central", "kind", "release"),
    [("elsewhere", "selective", "run"), ("c1", "metric-local", "run"), ("c1", "selective", "other")],
)
def test_an_exposure_that_nothing_calls_for_is_found(central: str, kind: str, release: str) -> None:
    book = selective()
    book.reserve("s", "run", gaussian(6.0), gdp_cost(6.0))
    book.expose(central, "s", kind, release)
    refuse_next(book, "entry 6 .* no charge calls for")


def test_an_account_opened_later_records_what_came_first() -> None:
    book = Handmade().open("s", kind="selective", corpus="mail", parameters={"policy": "names"})
    book.reserve("s", "run", gaussian(6.0), gdp_cost(6.0))
    book.open("late", corpus="mail")
    refuse_next(book, "the end .* due")
    book.expose("late", "s", "selective", "run")
    replay(book.rows)
    book.expose("late", "s", "selective", "run")
    refuse_next(book, "entry 5 .* no charge calls for")
