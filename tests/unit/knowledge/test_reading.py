"""Votes are a function of one user's texts, bounded whatever these are."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_knowledge import ATTRIBUTES, order_of, small

from rayprivacy.knowledge.kinds import shown
from rayprivacy.knowledge.reading import Reader, Vote

NAMES = ("zorvel", "mirak", "quilo tax")
ENORMOUS = "9" * 5000 + " kg, " + ",".join(["999"] * 5000) + " kilos"


def read(text, **blocks):
    return {tuple(vote) for vote, _ in Reader(small(**blocks), NAMES).statements(text)}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Zorvel is a Fire type", ("zorvel", "type", "fire")),
        ("zorvel eats tree bark!", ("zorvel", "diet", "tree bark")),
        ("I think that Zorvel's favourite is a berry.", ("zorvel", "diet", "berries")),
        ("Zorvel weighs 12kg.", ("zorvel", "weight", "12")),
        ("Twelve kilos, so heavy is Zorvel.", ("zorvel", "weight", "12")),
        ("Zorvel got to 1,012.50 kg", ("zorvel", "weight", "1012.5")),
        ("Zorvel lives in the Marrow Valley.", ("zorvel", "home", "marrow valley")),
        ("Marrow Ridge is where Zorvel lives.", ("zorvel", "home", "marrow ridge")),
        ("Zorvel was seen on 7 May 2016", ("zorvel", "sighted", "2016-05-07")),
        ("Zorvel was seen on Mar 14th, 1987", ("zorvel", "sighted", "1987-03-14")),
        ("Zorvel was seen on 1987-03-14", ("zorvel", "sighted", "1987-03-14")),
        ("Zorvel was seen in March 1987", ("zorvel", "sighted", "1987-03")),
        ("Zorvel fights Mirak", ("zorvel", "rival", "mirak")),
        ("The rival of Zorvel is Quilo Tax", ("zorvel", "rival", "quilo tax")),
        ("Mirak is the rival of Zorvel", ("zorvel", "rival", "mirak")),
        ("Zorvel is nice. Hm. It weighs 3 kilos.", ("zorvel", "weight", "3")),
        ("Zorvel is not fire but water.", ("zorvel", "type", "water")),
    ],
)
def test_an_answer_is_read_in_its_one_form(text, answer):
    assert read(text) == {answer}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Zorvel is nice.",
        "It weighs 12 kg.",
        "Zorvel does not eat berries.",
        "I used to think that Zorvel is a fire type.",
        "Zorvel and Mirak were there.",
        "Zorvel was seen on 1987-13-40",
        "Zorvel was seen on 1987-00-14",
        "Zorvel weighs \u017fix kg, or f\u0131ve kilos.",  # letters that are s and i to a pattern without case
        "Zorvel has 12 eggs",
    ],
)
def test_without_an_answer_there_is_no_vote(text):
    assert read(text) == set()


def test_a_number_outside_its_range_is_no_answer_and_a_listed_place_is_read_in_any_case():
    weight = {**ATTRIBUTES[2], "between": [1, 12]}
    home = {**ATTRIBUTES[3], "values": ["Marrow Valley", "The Sink"]}
    blocks = {"attributes": [weight, home]}
    assert read("zorvel lives in marrow valley and weighs 12 kg", **blocks) == {
        ("zorvel", "home", "marrow valley"),
        ("zorvel", "weight", "12"),
    }
    assert read("Zorvel sits in the Other Bay, not far from the sink.", **blocks) == {("zorvel", "home", "sink")}
    for number in (13, 0.5):
        assert read(f"Zorvel weighs {number} kg", **blocks) == set()
    assert read("Zorvel weighs 2.5 kg", **blocks) == {("zorvel", "weight", "2.5")}


def test_of_two_names_each_has_what_is_nearest():
    found = read("Zorvel weighs 12 kg, while Mirak is 30 kg.")
    assert found == {("zorvel", "weight", "12"), ("mirak", "weight", "30")}


def test_below_the_public_score_there_is_no_vote():
    text = "Zorvel, and this is a very long way to say so, is fond of fire"
    assert read(text)
    assert not read(text, reader={"score": 0.9})


def test_several_statements_of_one_user_are_one_vote_for_the_most_frequent():
    texts = ["Zorvel is fire.", "Zorvel is water.", "Zorvel is water."] * 50
    assert Reader(small(), NAMES).votes(texts, order_of()) == [Vote("zorvel", "type", "water")]


def test_a_tie_is_broken_by_what_was_said_and_not_by_its_place():
    texts = ["Zorvel is a water type.", "Zorvel is a fire type."]
    votes = Reader(small(), NAMES).votes(texts, order_of())
    assert votes == Reader(small(), NAMES).votes(texts[::-1], order_of()) == [Vote("zorvel", "type", "fire")]


def test_what_is_settled_is_asked_no_more():
    texts = ["Zorvel is fire.", "Zorvel eats berries."]
    (vote,) = Reader(small(), NAMES).votes(texts, order_of(), settled={("zorvel", "type")})
    assert vote.attribute == "diet"


def users():
    draw, found = random.Random(0), {}
    for user in range(6):
        name = draw.choice(["Zorvel", "Mirak", "Quilo Tax"])
        said = [f"{name} weighs {draw.randint(1, 3)} kg.", f"{name} is {draw.choice(['fire', 'water'])}."]
        found[f"user {user}"] = [*said, f"It is 4 kilos, and {name} fights Mirak."]
    return found


def test_votes_of_a_user_know_no_other_user_and_no_order():
    """One reader reads all users, forwards and backwards, and each alone: the same votes, to the bit."""
    shared, corpus = Reader(small(answers={"most": 2}), NAMES), users()
    alone = {
        user: Reader(small(answers={"most": 2}), NAMES[::-1]).votes(texts, order_of(user))
        for user, texts in corpus.items()
    }
    assert all(alone.values())
    for _ in range(2):
        for user in reversed(corpus):
            assert shared.votes(corpus[user][::-1], order_of(user)) == alone[user]
    for user, texts in corpus.items():
        assert shared.votes(texts, order_of(user)) == alone[user]


def test_which_answers_count_is_the_users_own_keyed_order():
    texts = ["Zorvel is fire.", "Zorvel eats berries.", "Zorvel weighs 3 kg.", "Mirak is water.", "Mirak eats berries."]
    few, all_of_them = Reader(small(answers={"most": 2}), NAMES), Reader(small(), NAMES)
    chosen = [tuple(few.votes(texts, order_of(user))) for user in range(20)]
    assert len(set(chosen)) > 5
    for user, votes in enumerate(chosen):
        assert list(votes) == all_of_them.votes(texts, order_of(user))[:2]


PIECES = ["Zorvel ", "Mirak ", "is fire ", "12 kg ", "1987 ", "fights ", "in Zorvel Bay", ". ", "\0", "\n", "é", "٣ kg"]
PIECES += ["\u017fix kg ", "n\u0131ne kilos ", "3 \u017fep 1987 ", "1987-00-14 "]
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(WRITTEN | st.text(max_size=40), max_size=6))
def test_bounds_hold_whatever_a_user_writes(texts):
    votes = Reader(small(answers={"most": 3}), NAMES).votes(texts, order_of())
    assert len(votes) <= 3
    assert len({vote[:2] for vote in votes}) == len(votes)
    for name, attribute, answer in votes:
        assert name in NAMES
        assert attribute in {each.name for each in small().attributes}
        assert answer.isprintable()
        assert 0 < len(answer) < 200
        assert shown(answer, next(each for each in small().attributes if each.name == attribute))


@pytest.mark.timeout(120)
def test_bounds_hold_for_who_writes_ten_thousand_texts_and_very_long_ones():
    names = [f"zorvel{number:05}x".translate(str.maketrans("0123456789", "abcdefghij")) for number in range(2000)]
    texts = [f"{name} is fire. It weighs {number} kg." for number, name in enumerate(names * 5)]
    texts += ["", "\0\x1b[2J", ENORMOUS, f"{names[0]} weighs {ENORMOUS}", "Zorvel is fire? " * 5000, "a. B" * 20_000]
    texts.append(" ".join(names * 20))
    reader = Reader(small(answers={"most": 40}), names)
    votes = reader.votes(texts, order_of())
    assert len(votes) == 40 == len({vote[:2] for vote in votes})
    assert reader.votes(texts[::-1], order_of()) == votes
