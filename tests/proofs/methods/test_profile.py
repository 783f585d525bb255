"""A profile's claim on its own path: raw rows, bounds and shards, tasks of parts, the gate; and what figures say."""

import math
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from adversaries import P_THRESHOLD, variance_p_value
from hypothesis import given
from hypothesis import strategies as st
from plain_shards import string_table, write_shards

import rayprivacy as rp
from rayprivacy.core.keys import Key, create_key
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.corpus.users import clean
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.profile import cells, figures
from rayprivacy.methods.profile.asking import recipe_of
from rayprivacy.methods.profile.counting import Counting, count_part, label_key, question_of
from rayprivacy.methods.profile.plan import COUNTS, KEYWORDS, plan_run
from rayprivacy.methods.profile.recipe import ProfileRecipe
from rayprivacy.release.gate import Asked, Gate
from rayprivacy.release.histogram import SCALE, Totals
from rayprivacy.runs.account import whole

PARTS = 3
PANTRY = ("apples", "pears", "plums", "nuts", "salt", "beans", "rice")
CROWD = [(f"user {n}", f"soup {' '.join(PANTRY[:n])} {'very ' * n}good", ("food", "pets")[n % 2]) for n in range(12)]
ADVERSARIES = {
    "all records": [("one more", f"soup bread {n}", "food") for n in range(200)],
    "one text again and again": [("one more", "soup", "food")] * 50,
    "no text": [("one more", "", "food"), ("one more", "   ", None), ("one more", None, None)],
    "a huge text": [("one more", "soup " * 100_000, "food")],
    "a huge word": [("one more", "x" * 300_000, "x" * 5000)],
    "words of nobody": [("one more", " ".join(f"mine{n}" for n in range(500)), None)],
    "labels of nobody": [("one more", f"soup {n}", f"label {n}") for n in range(90)],
    "labels that look like words": [("one more", '["topic", "food"]', "soup"), ("one more", "[soup", '["topic"')],
    "no letters": [("one more", "\u0000 \u2028 😀 42 \u0301", "\u0000")],
    "every script": [("one more", text, None) for text in ("привет", "γεια", "こんにちは", "سلام", "नमस्ते", "ᚠᚢ")],
    "another spelling of their name": [(" one more ", "soup", "food"), ("one more", "bread", "food")],
}
SPELT = st.lists(st.sampled_from(["soup", "bread", "the", "вода", "42", "\u0000"]), max_size=5).map(" ".join)
ROWS = st.lists(st.tuples(SPELT, st.sampled_from(["food", "pets", "x" * 2000, None])), max_size=9)


@pytest.fixture(scope="module")
def bench(tmp_path_factory, tiny_base):
    """Counts what rows come to, on the way of a run, without Ray."""
    folder = tmp_path_factory.mktemp("profile")
    create_key(folder / "key")
    return Bench(folder, str(tiny_base))


class Bench:
    def __init__(self, folder, base):
        self.folder, self.base, self.corpora = folder, base, 0
        self.recipe = self.load()
        self.key = Key((folder / "key").read_bytes())

    def load(self, **blocks):
        own = {
            "corpus": {"labels": ["topic"], "max_records_per_user": 40},
            "profile": {"keywords": 5},
        }
        privacy = {"ledger": f"sqlite:///{self.folder}/ledger.db", "key": str(self.folder / "key"), "account": "talk"}
        return ProfileRecipe.parse({**own, "privacy": privacy, "model": {"base": self.base}} | blocks)

    def job(self, shards, recipe=None):
        stages = {stage.name: stage.mechanism for stage in plan_run(recipe or self.recipe).charged}
        words = (recipe or self.recipe).profile.keywords
        own = words, ("topic",), stages.get(KEYWORDS)
        return Counting(shards, self.folder / "key", self.base, stages[COUNTS], *own)

    def counted(self, rows):
        """The sums of all parts, and of each."""
        self.corpora += 1
        shards = self.folder / f"shards-{self.corpora}"
        cleaned, _ = clean(string_table(rows), self.recipe.corpus.max_chars)
        write_shards(cleaned, self.key, self.recipe, shards, PARTS)
        parts = [count_part(self.job(shards), part) for part in range(PARTS)]
        return sum(sums for sums, _ in parts), sum((found for _, found in parts), Counter())


def _bounded(bench, rows, more):
    """In whole numbers, what one user's rows change: each block by a unit in all, and a number of keys by one each."""
    totals, keys = bench.job(bench.folder).totals, bench.job(bench.folder).keys
    (before, by_key), (after, more_by_key) = bench.counted(rows), bench.counted([*rows, *more])
    moved = after - before
    assert moved.min() >= 0
    assert all(sum(block.tolist()) <= SCALE for block in totals.split(moved))
    assert sum(step * step for step in moved.tolist()) <= 4 * SCALE**2 == round(totals.sensitivity**2)
    assert not by_key - more_by_key, "the others lost something"
    added = more_by_key - by_key
    assert len(added) <= keys.most == 9
    assert set(added.values()) <= {1}
    totals.check(after)
    keys.check(more_by_key)
    return moved, added


@pytest.mark.parametrize("more", ADVERSARIES.values(), ids=ADVERSARIES)
def test_no_adversarial_user_moves_the_counts_further(bench, more):
    _bounded(bench, CROWD, more)


@given(ROWS, ROWS)
def test_one_more_user_moves_the_counts_by_at_most_the_sensitivity(bench, others, own):
    _bounded(bench, [("other", *row) for row in others], [("one more", *row) for row in own])


def test_a_user_counts_once_however_much_they_wrote(bench):
    moved, added = _bounded(bench, CROWD, [("one more", f"soup {'bread ' * (n % 3)}", "food") for n in range(60)])
    users, records, *_ = bench.job(bench.folder).totals.split(moved)
    assert users.tolist() == [SCALE]
    assert sorted(records.tolist())[-2:] == [0, SCALE]
    assert added == {"soup": 1, "bread": 1, label_key("topic", "food"): 1}


def test_what_a_user_counts_for_is_what_most_of_their_texts_hold(bench):
    rows = [("ann", "soup apples pears plums nuts salt", "food")] + [("ann", f"bread milk {n}", "pets") for n in "abc"]
    _, found = bench.counted([*rows, *CROWD])
    _, others = bench.counted(CROWD)
    own = found - others
    assert {"bread", "milk", label_key("topic", "food"), label_key("topic", "pets")} <= own.keys()
    assert len(own) == 7


def test_who_has_no_text_is_no_user(bench):
    moved, added = _bounded(bench, CROWD, ADVERSARIES["no text"])
    assert not moved.any()
    assert not added


def test_the_question_names_what_is_asked_and_nothing_private(bench):
    asked = question_of(bench.job(bench.folder))
    assert asked == question_of(bench.job(bench.folder / "elsewhere"))
    assert asked != question_of(bench.job(bench.folder, bench.load(profile={"keywords": 6})))


# Noise, and what is charged for it


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
def test_both_releases_together_cost_what_is_asked_for_and_hardly_less(bench, composition):
    privacy = {"composition": composition, "epsilon": 0.5, "delta": 1e-6}
    outline = rp.plan(bench.load(privacy=privacy))
    assert 0.499 < outline.epsilon <= 0.5
    assert len(outline.plan.charges) == 2
    assert len(rp.plan(bench.load(privacy=privacy, profile={"keywords": 0}, corpus={})).plan.charges) == 1


def test_the_noise_has_the_scale_that_is_charged(bench):
    """Drawn by the gate for one corpus again and again; a scale that is 30% off is noticed."""
    totals = bench.job(bench.folder).totals
    sums = np.arange(totals.cells) * SCALE
    with closing(Ledger.open(f"sqlite:///{bench.folder}/noise.db")) as ledger:
        ledger.ensure_account("talk", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(1e6, 1e-6))
        gate = Gate(ledger, "talk", bench.key)
        drawn = [
            gate.release_histogram("r", totals, Private(sums), asked=Asked(digest_json(n), digest_json("q"))).value
            for n in range(40)
        ]
    noise = np.concatenate(drawn) - np.tile(np.arange(totals.cells), 40)
    mu = totals.sensitivity / (totals.std * SCALE)
    assert totals.event.event.noise_multiplier == pytest.approx(1 / mu)
    assert variance_p_value(noise, 2 / mu) > P_THRESHOLD  # four blocks: one user moves the counts by 2 in L2
    assert variance_p_value(noise, 1.3 * 2 / mu) < P_THRESHOLD


# What is asked of an account


@pytest.fixture
def ledger(tmp_path):
    def opened(composition="gdp", **more):
        url = f"sqlite:///{tmp_path}/ledger.db"
        with closing(Ledger.open(url)) as book:
            terms = PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6)
            book.create_account(composition, *terms, composition, corpus="chats", **more)
            return {"privacy": {"ledger": url, "account": composition}}, book.terms(composition).rule

    return opened


@pytest.mark.parametrize(("composition", "more"), [("gdp", {}), ("zcdp", {}), ("rdp", {"order": 16.0})])
def test_a_share_of_an_account_is_taken_by_its_own_rule(ledger, composition, more):
    blocks, rule = ledger(composition, threshold_delta=1e-7, **more)
    for share, taken in ((None, 0.02), (0.1, 0.1)):
        recipe = recipe_of(blocks, None, share)
        assert rule.share(rule.cost(whole(plan_run(recipe).charges), (0, 0))) == pytest.approx(taken, rel=1e-3)
        assert (recipe.privacy.delta, recipe.privacy.corpus) == (1e-6, "chats")
    assert recipe_of(blocks, 0.7, None).privacy.epsilon == 0.7
    assert recipe_of(blocks, None, None) == recipe_of(blocks, None, 0.02)


def test_what_an_account_cannot_pay_is_a_sentence(ledger):
    blocks, _ = ledger()
    with pytest.raises(rp.ConfigError, match=r"^account 'gdp' keeps no part of its delta for thresholds"):
        recipe_of(blocks, None, None)
    assert not recipe_of(blocks | {"profile": {"keywords": 0}}, None, None).keys
    absent = {"privacy": blocks["privacy"] | {"account": "nobody's"}}
    with pytest.raises(rp.ConfigError, match=r"^account 'nobody's' is not in sqlite:.*: open it first"):
        recipe_of(absent, None, None)
    for asked, message in (((1.0, 0.1), "give one of them"), ((None, 0.0), "above 0"), ((None, 1.5), "at most 1")):
        with pytest.raises(rp.ConfigError, match=message):
            recipe_of(blocks, *asked)


# What the figures say


COUNTED = Totals(cells.BLOCKS, sigma=4.0)


def _drawn(truth):
    sums = np.asarray(truth, dtype=np.int64) * SCALE
    return figures.figures_of(COUNTED.to_shares(COUNTED.draw(sums)), COUNTED, None)


def test_intervals_hold_as_often_as_they_say():
    """Of counts, which hold too often where they end at zero, and of quantiles, which name whole cells."""
    dice = np.random.default_rng(5)
    truth = dice.integers(60, 400, COUNTED.cells)
    _, records, tokens, _ = COUNTED.split(truth)
    ends = {"max_records_per_user": (records, cells.RECORDS), "max_tokens": (tokens, cells.TOKENS)}
    true = {name: int(np.argmax(np.cumsum(own) >= 0.95 * own.sum())) for name, (own, _) in ends.items()}
    hits, counts, runs = Counter(), [], 150
    for _ in range(runs):
        found = _drawn(truth)
        for name, (_, last) in ends.items():
            low, high = found["suggested"][name]["interval"]
            end = (*last, math.inf)[true[name]]
            hits[name] += low <= end <= (high or math.inf)
        shown = [each["users"] for each in (*found["records_per_user"], *found["tokens_per_text"])]
        counts += [
            low <= count <= high
            for count, (low, high) in zip([*records, *tokens], (each["interval"] for each in shown), strict=True)
        ]
    assert 0.93 < np.mean(counts) < 0.98
    assert all(hits[name] >= 0.9 * runs for name in ends)


def test_nobody_is_a_profile_too():
    found = _drawn(np.zeros(COUNTED.cells))
    assert found["users"]["interval"][0] == 0
    assert all(each["users"]["value"] >= 0 for each in found["records_per_user"])
    assert figures.tables(found)
