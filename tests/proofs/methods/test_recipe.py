"""Recipes: what is wrong is one sentence, numbers are numbers, and the release id moves with what is released."""

from pathlib import Path

import pytest
import yaml
from planned import mechanism as mechanism_of

import rayprivacy as rp
from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.registry import load_recipe, method_of, parse_recipe
from rayprivacy.methods.seqpate.plan import GATE, noise_on_mean, plan_run
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.runs.account import open_account
from rayprivacy.runs.files import dump_recipe

FOLDER = Path(__file__).parents[3] / "jobs"
OF_QUESTIONS = FOLDER / "question_answering" / "public.yaml"  # it is no recipe of a method
JOBS = sorted({*FOLDER.rglob("*.yaml")} - {OF_QUESTIONS})
REFUSED = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
MANY = {"corpus": {"labels": ["topic"]}, "codes": {"values": {"topic": [str(number) for number in range(10_000)]}}}
CASES = [
    *((method, blocks, says) for method, rows in REFUSED.items() for blocks, says in rows),
    ("generator", MANY, "10,?001|10000"),
]


@pytest.mark.parametrize(("method", "blocks", "says"), CASES, ids=[f"{each[0]}-{each[2]}"[:80] for each in CASES])
def test_a_recipe_without_a_guarantee_is_refused(method, blocks, says):
    """What cannot run, or has no guarantee, is refused before anything is read: a table of all methods."""
    with pytest.raises(ConfigError, match=says) as refused:
        method_of(recipe := parse_recipe({"method": method, **blocks})).planned(recipe)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith((".", ")"))
    assert "hunter2" not in str(refused.value), "no credentials are repeated"


def _read(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    return load_recipe(tmp_path / "recipe.yaml", ["method=seqpate"])


def _with(*overrides):
    return rp.load_recipe({"method": "seqpate", "seed": 0}, overrides)


DEFAULT = SeqPateRecipe().release_id


@pytest.mark.parametrize(("key", "nearest"), [("sed", "seed"), ("student.learnin_rate", "student.learning_rate")])
def test_an_unknown_key_suggests_the_nearest(tmp_path, key, nearest):
    says = f"'{key}' is not a key of the recipe: did you mean '{nearest}'"
    block, _, inner = key.partition(".")
    with pytest.raises(ConfigError, match=says):
        _read(tmp_path, f"{block}: {{{inner}: 3}}" if inner else f"{block}: 3")
    with pytest.raises(ConfigError, match=says):
        _with(f"{key}=3")


def test_a_number_in_any_notation_is_a_number(tmp_path):
    for number in ("1e-6", "1E-6", "1.0e-6", "0.000001"):
        assert _with(f"privacy.delta={number}").privacy.delta == 1e-6
        assert _read(tmp_path, f"privacy: {{delta: {number}}}").privacy.delta == 1e-6


def test_overrides_win_in_order_and_reach_new_blocks():
    lists = ("generation.prompt_words=[2, 3]", "corpus.labels=[topic, mood]")
    recipe = _with("teachers={count: 10, rank: 3}", "teachers.count=20", "teachers.count=30", "seed=7", *lists)
    assert (recipe.teachers.count, recipe.teachers.rank, recipe.seed) == (30, 3, 7)
    assert recipe.generation.prompt_words == (2, 3)
    assert recipe.corpus.labels == ("topic", "mood")
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("teachers.count", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("seed.deep=3", "goes into 'seed', which is a value and has no keys"),
        ("seed=[1", "is not valid YAML"),
        ("privacy.epsilon=1e999", "'privacy.epsilon' is inf"),
        ("method=dpsgd", "'method' is 'dpsgd'"),
    ],
)
def test_a_wrong_override_is_one_sentence(override, says):
    with pytest.raises(ConfigError) as caught:
        _with(override)
    assert says in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_a_text_that_is_no_recipe_is_refused(tmp_path):
    wrong = r"is not valid YAML at line \d+: check quotes, colons and indentation\.$"
    for text in ("a: [1", "a: b: c", "\t- x", '"open'):
        with pytest.raises(ConfigError, match=wrong):
            _read(tmp_path, f"seed: 1\n{text}")
    for text in ("", "- a\n- b", "just words", "7"):
        with pytest.raises(ConfigError, match="is not a mapping of keys: start it with"):
            _read(tmp_path, text)
    with pytest.raises(ConfigError, match="not valid YAML"):
        _read(tmp_path, "seed: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match=r"none\.yaml', which cannot be read .*: give a YAML file"):
        load_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_packaged_recipe_survives_being_written_and_read(path, tmp_path):
    recipe = load_recipe(path)
    (tmp_path / "again.yaml").write_text(dump_recipe(recipe))
    again = load_recipe(tmp_path / "again.yaml")
    assert again == recipe
    assert again.release_id == recipe.release_id


def test_rounds_fit_the_budget_of_one(tmp_path):
    recipe = _with(f"privacy.ledger=sqlite:///{tmp_path}/book.db", "votes.rounds=7")
    plan = plan_run(recipe)
    assert sum(event.count for event in plan.stage(GATE).charges) == mechanism_of(recipe, GATE).queries >= 50
    with open_account(recipe, plan) as ledger:
        for number, event in enumerate(plan.charges):
            ledger.reserve("default", recipe.release_id, f"{number:064x}", event)


def test_as_many_queries_as_the_noise_allows():
    for clip in ("votes.clip=null", "votes.clip=0.3"):
        found = mechanism_of(_with("votes.queries=auto", "votes.noise_target=0.03", clip), GATE)
        more = mechanism_of(_with(f"votes.queries={found.queries + 1}", clip), GATE)
        assert noise_on_mean(found) <= 0.03 < noise_on_mean(more)


def test_as_wide_a_clip_as_the_noise_allows():
    for budget in ("privacy.epsilon=0.5", "privacy.epsilon=3", "privacy.epsilon=8"):
        mechanism = mechanism_of(_with(budget), GATE)
        assert noise_on_mean(mechanism) == pytest.approx(0.015, rel=0.01)
        assert noise_on_mean(mechanism_of(_with(budget, f"votes.clip={mechanism.clip + 0.001}"), GATE)) > 0.015


@pytest.mark.parametrize(
    ("overrides", "clip"),
    [
        (("teachers.count=1", "privacy.epsilon=8"), 0.001),
        (("teachers.count=10000", "privacy.epsilon=8"), 0.7071),
        (("privacy.composition=zcdp", "votes.ballot=top1"), None),
        (("privacy.composition=zcdp", "votes.noise=laplace"), None),
        (("privacy.composition=zcdp", "votes.clip=null"), None),
    ],
)
def test_an_automatic_clip_has_a_range_or_is_none(overrides, clip):
    assert mechanism_of(_with(*overrides), GATE).clip == clip


SAME = """resources.actors=3 resources.address=auto resources.features=elsewhere generation.texts=7 generation.seed=9
    evaluation.users=3 student.steps=59 student.learning_rate=1e-3 student.label=top1 student.mix=0.5
    student.pseudo=false privacy.ledger=sqlite:///elsewhere.db privacy.key=other.key privacy.account=another"""
OTHER = """seed=1 prompts=prompts.txt privacy.epsilon=3.5 privacy.delta=1e-7 teachers.count=999 teachers.max_steps=7
    teachers.epochs=7 teachers.kind=lora teachers.stack=49 votes.queries=999 votes.top_k=49 votes.top_p=1.0
    votes.clip=0.3 votes.ballot=top1 votes.select=entropy votes.rounds=2 student.seed=1 student.warm_steps=59
    corpus.source=chats.parquet corpus.max_records_per_user=99 model.dtype=float32 model.base=other"""


def test_performance_post_processing_and_bookkeeping_are_the_same_release():
    for override in SAME.split():
        changed = _with(override)
        assert changed != SeqPateRecipe(), override
        assert changed.release_id == DEFAULT, override
    assert _with("privacy.epsilon=3", "privacy.delta=0.000001").release_id == DEFAULT


def test_what_decides_the_release_changes_its_id():
    found = [_with(override).release_id for override in OTHER.split()]
    assert len({DEFAULT, *found}) == len(found) + 1
    # With several rounds, how the student learns decides what is asked.
    assert _with("votes.rounds=2", "student.steps=59").release_id != _with("votes.rounds=2").release_id
    # An audit is another release, and its size is not.
    audited = _with("audit={}").release_id
    assert len({DEFAULT, audited, _with("audit={canaries: {candidates: 50}}").release_id}) == 3
    assert {_with(f"audit={{{size}}}").release_id for size in ("users: 7", "shadows: 4")} == {audited}


PLACES = [f"@host/db?{key}=pass-word" for key in ("password", "PGPASSWORD", "oauth_client_secret")]


@pytest.mark.parametrize("place", [":pass-word@host/db", *PLACES, "@host/db?sslmode=require&sslpassword=pass-word"])
def test_a_password_in_the_recipe_is_refused_and_not_repeated(place):
    ledger = f"privacy.ledger=postgresql://ledger{place}"
    with pytest.raises(ConfigError, match=r"privacy\.ledger holds a password: put it into a password file") as caught:
        _with(ledger)
    assert "pass-word" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        _with(ledger, "privacy.unit=record")  # which is refused by itself
    assert "pass-word" not in str(caught.value)
    assert _with("privacy.ledger=postgresql://ledger@host/db?passfile=/home/ledger/.pgpass")
