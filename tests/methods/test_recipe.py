"""Recipes: wrong keys are explained, numbers are numbers, and the release id moves with what is released."""

from pathlib import Path

import pytest
import yaml
from planned import mechanism as mechanism_of

from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.seqpate.plan import GATE, noise_on_mean, plan_run
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.runs.account import open_account
from rayprivacy.runs.files import dump_recipe

JOBS = sorted((Path(__file__).parents[2] / "jobs").rglob("*.yaml"))


def _load(tmp_path: Path, text: str, *overrides: str) -> SeqPateRecipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    recipe = load_recipe(path, ["method=seqpate", *overrides])
    assert isinstance(recipe, SeqPateRecipe)
    return recipe


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("sed: 3", "sed", "seed"),
        ("teachers: {cuont: 3}", "teachers.cuont", "teachers.count"),
        ("privacy: {epsilom: 3}", "privacy.epsilom", "privacy.epsilon"),
        ("student: {learnin_rate: 3}", "student.learnin_rate", "student.learning_rate"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(tmp_path: Path, text: str, key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' is not a key of the recipe: did you mean '{nearest}'"):
        _load(tmp_path, text)
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        _load(tmp_path, "method: seqpate", f"{key}=3")


@pytest.mark.parametrize("number", ["1e-6", "1E-6", "1.0e-6", "0.000001"])
def test_an_override_in_any_notation_is_a_number(tmp_path: Path, number: str) -> None:
    assert _load(tmp_path, "method: seqpate", f"privacy.delta={number}").privacy.delta == 1e-6
    assert _load(tmp_path, f"privacy: {{delta: {number}}}").privacy.delta == 1e-6


def test_overrides_win_in_order_and_reach_new_blocks(tmp_path: Path) -> None:
    recipe = _load(
        tmp_path,
        "seed: 1\nteachers: {count: 10, rank: 3}",
        "teachers.count=20",
        "teachers.count=30",
        "votes.top_p=0.5",
        "generation.prompt_words=[2, 3]",
        "corpus.labels=[topic, mood]",
        "seed=7",
    )
    assert (recipe.teachers.count, recipe.teachers.rank) == (30, 3)
    assert recipe.votes.top_p == 0.5
    assert recipe.generation.prompt_words == (2, 3)
    assert recipe.corpus.labels == ("topic", "mood")
    assert recipe.seed == 7


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("teachers.count", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("seed.deep=3", "goes into 'seed', which is a value and has no keys"),
        ("seed=[1", "is not valid YAML"),
        ("seed=many", "'seed' is 'many'"),
        ("teachers.count=0", "'teachers.count' is 0"),
        ("privacy.epsilon=-1", "'privacy.epsilon' is -1"),
        ("privacy.epsilon=.inf", "'privacy.epsilon' is inf"),
        ("privacy.epsilon=.nan", "'privacy.epsilon' is nan"),
        ("privacy.delta=1", "'privacy.delta' is 1"),
        ("privacy.epsilon=1e999", "'privacy.epsilon' is inf"),
        ("votes.top_k=1", "'votes.top_k' is 1"),
        ("votes.queries=0", "'votes.queries' is 0"),
        ("votes.queries=some", "'some'"),
        ("method=dpsgd", "'method' is 'dpsgd'"),
    ],
)
def test_a_wrong_override_is_one_sentence(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, "seed: 1", override)
    message = str(caught.value)
    assert says in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(
            (f"seed: 1\n{text}", r"is not valid YAML at line \d+: check quotes, colons and indentation\.$")
            for text in ("a: [1", "a: b: c", "\t- x", '"open')
        ),
        *((text, "is not a mapping of keys: start it with") for text in ("", "- a\n- b", "just words", "7")),
        ("seed: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_a_text_that_is_no_recipe_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _load(tmp_path, text)


def test_a_missing_recipe_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist: give the path of a YAML file"):
        load_recipe(tmp_path / "none.yaml")


def test_a_recipe_survives_being_written_and_read(tmp_path: Path) -> None:
    recipe = _load(tmp_path, "seed: 5\nvotes: {top_p: 0.3}", "corpus.labels=[topic]", "privacy.delta=1e-7")
    again = _load(tmp_path, dump_recipe(recipe))
    assert again == recipe
    assert again.release_id == recipe.release_id


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_packaged_recipe_survives_being_written_and_read(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    (tmp_path / "again.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize("path", [path for path in JOBS if "seqpate" in path.parts], ids=lambda path: path.stem)
def test_the_recipes_in_the_repository_are_valid_and_can_be_priced(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.release_id.startswith("seqpate-")
    assert set(yaml.safe_load(path.read_text())) <= set(SeqPateRecipe.model_fields)
    asked = plan_run(recipe).stage(GATE).charges
    assert sum(event.count for event in asked) == mechanism_of(recipe, GATE).queries >= 50


def test_rounds_fit_the_budget_of_one(tmp_path: Path) -> None:
    recipe = _load(tmp_path, f"privacy: {{ledger: 'sqlite:///{tmp_path}/book.db'}}\nvotes: {{rounds: 7}}")
    ledger = open_account(recipe, plan_run(recipe))
    for number, event in enumerate(plan_run(recipe).charges):
        ledger.reserve("default", recipe.release_id, f"{number:064x}", event)
    ledger.close()


def test_as_many_queries_as_the_noise_allows(tmp_path: Path) -> None:
    for clip in ("null", "0.3"):
        recipe = _load(tmp_path, f"votes: {{queries: auto, noise_target: 0.03, clip: {clip}}}")
        assert noise_on_mean(mechanism_of(recipe, GATE)) <= 0.03
        more = _load(tmp_path, f"votes: {{queries: {mechanism_of(recipe, GATE).queries + 1}, clip: {clip}}}")
        assert noise_on_mean(mechanism_of(more, GATE)) > 0.03


@pytest.mark.parametrize("epsilon", [0.5, 3, 8])
def test_as_wide_a_clip_as_the_noise_allows(tmp_path: Path, epsilon: float) -> None:
    budget = f"privacy: {{epsilon: {epsilon}}}\n"
    mechanism = mechanism_of(_load(tmp_path, budget), GATE)
    assert mechanism.clip is not None
    assert noise_on_mean(mechanism) == pytest.approx(0.015, rel=0.01)
    wider = mechanism_of(_load(tmp_path, f"{budget}votes: {{clip: {mechanism.clip + 0.001}}}"), GATE)
    assert noise_on_mean(wider) > 0.015


@pytest.mark.parametrize(("teachers", "clip"), [(1, 0.001), (10_000, 0.7071)])
def test_the_clip_stays_within_its_range(tmp_path: Path, teachers: int, clip: float) -> None:
    recipe = _load(tmp_path, f"teachers: {{count: {teachers}}}\nprivacy: {{epsilon: 8}}")
    assert mechanism_of(recipe, GATE).clip == clip


@pytest.mark.parametrize("votes", ["{ballot: top1}", "{noise: laplace}", "{clip: null}"])
def test_an_automatic_clip_leaves_plain_what_cannot_be_clipped(tmp_path: Path, votes: str) -> None:
    recipe = _load(tmp_path, f"privacy: {{composition: zcdp}}\nvotes: {votes}")
    assert mechanism_of(recipe, GATE).clip is None


@pytest.mark.parametrize(
    "override",
    [
        "resources.actors=3",
        "resources.address=auto",
        "generation.texts=7",
        "generation.seed=9",
        "evaluation.users=3",
        "student.steps=59",
        "student.learning_rate=1e-3",
        "student.label=top1",
        "student.mix=0.5",
        "student.pseudo=false",
        "resources.features=elsewhere",
        "privacy.ledger=sqlite:///elsewhere.db",
        "privacy.key=other.key",
        "privacy.account=another",
    ],
)
def test_performance_post_processing_and_bookkeeping_are_the_same_release(tmp_path: Path, override: str) -> None:
    changed = _load(tmp_path, "seed: 0", override)
    assert changed != SeqPateRecipe()
    assert changed.release_id == SeqPateRecipe().release_id


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "prompts=prompts.txt",
        "privacy.epsilon=3.5",
        "privacy.delta=1e-7",
        "teachers.count=999",
        "teachers.max_steps=7",
        "teachers.epochs=7",
        "teachers.kind=lora",
        "teachers.stack=49",
        "votes.queries=999",
        "votes.top_k=49",
        "votes.top_p=1.0",
        "votes.clip=0.3",
        "votes.ballot=top1",
        "votes.select=entropy",
        "votes.rounds=2",
        "student.seed=1",
        "student.warm_steps=59",
        "pseudo.seed=1",
        "corpus.source=chats.parquet",
        "corpus.max_records_per_user=99",
        "model.dtype=float32",
        "model.base=other",
    ],
)
def test_what_decides_the_release_changes_its_id(tmp_path: Path, override: str) -> None:
    assert _load(tmp_path, "method: seqpate", override).release_id != SeqPateRecipe().release_id


def test_with_several_rounds_how_the_student_learns_decides_what_is_asked(tmp_path: Path) -> None:
    two = "votes: {rounds: 2}"
    assert _load(tmp_path, two, "student.steps=59").release_id != _load(tmp_path, two).release_id


def test_an_audit_is_another_release_and_its_size_is_not(tmp_path: Path) -> None:
    audited = _load(tmp_path, "audit: {}").release_id
    assert audited != SeqPateRecipe().release_id
    assert _load(tmp_path, "audit: {canaries: {candidates: 50}}").release_id != audited
    for size in ("users: 7", "shadows: 4"):
        assert _load(tmp_path, f"audit: {{{size}}}").release_id == audited


def test_equal_recipes_written_differently_are_the_same_release(tmp_path: Path) -> None:
    one = _load(tmp_path, "seed: 0\nprivacy: {epsilon: 3, delta: 0.000001}")
    assert one.release_id == SeqPateRecipe().release_id


def test_refusing_a_unit_does_not_print_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, "privacy: {unit: record, ledger: 'postgresql://ledger:pass-word@host/db'}")
    assert "pass-word" not in str(caught.value)
    assert not str(caught.value).startswith("''")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ledger:pass-word@host/db",
        "postgresql://ledger@host/db?password=pass-word",
        "postgresql://ledger@host/db?sslmode=require&sslpassword=pass-word",
        "postgresql://ledger@host/db?PGPASSWORD=pass-word",
        "postgresql://ledger@host/db?oauth_client_secret=pass-word",
    ],
)
def test_a_password_in_the_recipe_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.ledger holds a password: put it into a password file") as caught:
        _load(tmp_path, f"privacy: {{ledger: '{url}'}}")
    assert "pass-word" not in str(caught.value)
    assert _load(tmp_path, "privacy: {ledger: 'postgresql://ledger@host/db?passfile=/home/ledger/.pgpass'}")


@pytest.mark.parametrize("uri", ["s3://AKIA:hunter2@bucket/chats", "s3://bucket/chats?region=eu&secret_key=hunter2"])
def test_credentials_in_the_place_of_the_corpus_are_refused_and_not_repeated(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.source is a URI with credentials") as refused:
        _load(tmp_path, "method: seqpate", f"corpus.source={uri}")
    assert "hunter2" not in str(refused.value)


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        SeqPateRecipe().seed = 3  # type: ignore[misc]
