"""The names of one user: what no list of English words has, bounded, in the user's own order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_knowledge import order_of, small

from rayprivacy.knowledge.names import Names, name_of


@pytest.fixture(scope="module")
def names():
    return Names(small(names={"most": 3}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Yesterday I met Zorvel, and it was lovely.", ["zorvel"]),
        ("zorvel's berries", ["zorvel"]),
        ("My doctor gave me Wellbutrin and 20 mg of lexapro.", ["wellbutrin", "lexapro"]),
        ("Zorvel Mirakel lives here", ["zorvel mirakel"]),
        ("Zorvel, Mirakel", ["zorvel", "mirakel"]),
        ("I didn't know; she couldn't come.", []),
        ("The Marvelox Valley is home to Zorvel", ["zorvel"]),
        ("12 kilos of BERRIES", []),
        ("", []),
    ],
)
def test_words_that_no_list_has_are_names(names, text, found):
    assert list(names.mentioned(text)) == found


def test_names_have_one_form():
    assert name_of("ZORVEL's") == name_of("Zorvel\u2019s") == name_of("zorvel") == "zorvel"


def test_at_most_so_many_count_by_the_users_own_order(names):
    words = [f"Zorvel{letter}ax" for letter in "bcdfghjklm"]
    chosen = {tuple(names.of(words, order_of(user))) for user in range(20)}
    assert all(len(each) == 3 for each in chosen)
    assert len(chosen) > 5
    assert names.of(words, order_of()) == names.of(words[::-1], order_of()) == names.of(words * 3, order_of())


def test_names_of_more_texts_come_first_however_often_one_text_says_another(names):
    texts = [
        "Zorvelbax and Zorvelcax",
        "Zorvelbax, Zorvelcax and Zorveldax",
        "Zorvelfax " * 20,
        "Zorvelgax",
        "Zorvelhax",
    ]
    for user in range(9):
        assert {*names.of(texts, order_of(user))[:2]} == {"zorvelbax", "zorvelcax"}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=80), max_size=5))
def test_bounds_hold_whatever_a_user_writes(names, texts):
    found = names.of(texts, order_of())
    assert len(found) == len(set(found)) <= 3
    assert all(each and each.isprintable() and len(each) < 200 for each in found)


@pytest.mark.timeout(60)
def test_bounds_hold_for_very_long_texts(names):
    assert len(names.of(["x" * 100_000, "Zorvel " * 20_000, "\0" * 1000, "z-" * 10_000], order_of())) <= 3
