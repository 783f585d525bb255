"""What a space file may say, refused in a sentence; what a trial may cost, which one wins, and which has no figure."""

import json
import math
import re
from contextlib import nullcontext
from typing import Any

import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from planned import mechanisms
from rich.console import Console
from small_trees import small_recipe

from rayprivacy.accounting.selection import select_event
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import create_key
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.methods.two_stage.plan import PARSES, UTTERANCES
from rayprivacy.runs.files import overridden
from rayprivacy.tuning import selection
from rayprivacy.tuning.outcome import conclude, open_study
from rayprivacy.tuning.search import feasible, start_search
from rayprivacy.tuning.selection import same_event
from rayprivacy.tuning.space import load_space, merged

NORM = {"training.clipping_norm": 1.0}
CHARGED = {"name": "heldout_loss", "noise_multiplier": 0.5, "max_tokens": 12}
PUBLIC = {"source": "public.parquet", "user": "who", "text": "said"}
FREE: dict[str, Any] = {
    "release": "run",
    "recipe": None,
    "charging": "free",
    "budget": None,
    "search": {"questions.keep.share": {"uniform": [0.2, 0.8]}},
    "metric": {"name": "annotated_accuracy"},
}
NOT_FREE = [
    *("training.steps", "generation.texts", "questions.asker.steps", "questions.pairs", "questions.judge"),
    *("questions.seed", "questions.value.annotations", "questions.keep.attributable", "questions.keep", "questions"),
]


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ({"metric": {"name": "heldout.perplexity"}}, "it reads private text"),
        ({"metric": {"name": "loss"}}, "it is unknown"),
        ({"metric": {"name": "public_perplexity"}}, "text goes with 'public_perplexity'"),
        ({"search": {}}, "search"),
        ({"search": {"privacy.delta": {"choice": [1e-5, 1e-6]}}}, "'privacy.delta', which a search must not decide"),
        ({"search": {"corpus.source": {"choice": ["a", "b"]}}}, "'corpus.source', which a search must not decide"),
        ({"search": {"training.steps": {"integers": [5, 2]}}}, "the first number must be below the second"),
        ({"search": {"training.steps": {"loguniform": [0, 2]}}}, "both numbers must be positive"),
        ({"search": {"training.steps": {"uniform": [1, 2], "choice": [1, 2]}}}, "give one of uniform"),
        ({"search": {"training.steps": {"choice": [1]}}}, "two different values"),
        ({"charging": "free"}, "give a `release` with 'free', a `recipe` with all others"),
        ({"release": "run"}, "give a `release` with 'free', a `recipe` with all others"),
        ({"recipe": None}, "give a `release` with 'free', a `recipe` with all others"),
        ({"metric": {"name": "annotated_accuracy"}}, "'annotated_accuracy' goes with 'free'"),
        (FREE | {"metric": {"name": "distinct_2"}}, "'annotated_accuracy' goes with 'free'"),
        (FREE | {"recipe": "generator.yaml"}, "give a `release` with 'free', a `recipe` with all others"),
        (FREE | {"budget": {"account": "a", "epsilon": 1.0}}, "goes with all but 'public' and 'free'"),
        (FREE | {"public": PUBLIC}, "the block `public` goes with 'public'"),
        ({"charging": "public"}, "the block `public` goes with 'public'"),
        ({"charging": "public", "public": PUBLIC}, "the block `budget` goes with all but 'public' and 'free'"),
        ({"budget": None}, "the block `budget` goes with all but 'public' and 'free'"),
        ({"charging": "select"}, "use searcher random, and no pruning"),
        ({"charging": "select", "searcher": "random", "pruning": {}}, "use searcher random, and no pruning"),
        ({"charging": "select", "searcher": "random", "concurrent": 2}, "one trial after the other"),
        ({"objectives": "utility_and_epsilon"}, "search lacks privacy.epsilon"),
        ({"trails": 3}, "'trails' is not a key of the space: did you mean 'trials'?"),
        ({"budget": {"account": "a", "epsilon": -1}}, "'budget.epsilon'"),
        ({"metric": {"name": "heldout_loss"}}, "noise_multiplier goes with 'heldout_loss'"),
        ({"metric": {"name": "distinct_2", "noise_multiplier": 1.0}}, "noise_multiplier goes with 'heldout_loss'"),
        ({"metric": CHARGED | {"text": "public.txt"}}, "text goes with 'public_perplexity'"),
        ({"metric": CHARGED | {"noise_multiplier": 0}}, "'metric.noise_multiplier'"),
        ({"metric": CHARGED | {"noise_multiplier": math.nan}}, "'metric.noise_multiplier'"),
        ({"metric": CHARGED | {"most": math.inf}}, "'metric.most'"),
        ({"metric": CHARGED | {"records": 0}}, "'metric.records'"),
        ({"metric": {"name": "private_loss"}}, "it reads private text, and what steers"),
        ({"metric": {"name": "heldout_perplexity"}}, "charged as 'heldout_loss'"),
        ({"metric": CHARGED, "charging": "select", "searcher": "random"}, "one mechanism: use charging pay_for_all"),
        ({"metric": CHARGED, "charging": "public", "public": PUBLIC, "budget": None}, "never opens the private corpus"),
    ],
)
def test_a_wrong_space_is_one_sentence(bench, blocks, says):
    with pytest.raises(ConfigError) as refused:
        load_space(bench.space(**blocks))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", NOT_FREE)
def test_a_free_search_takes_no_key_of_the_recipe(bench, key):
    """Nor one of what was asked, answered, judged or annotated: neither searched nor fixed."""
    searched = FREE | {"search": {key: {"choice": [1, 2]}}}
    for blocks in (searched, FREE | {"fixed": overridden({}, {key: 1})}):
        with pytest.raises(ConfigError, match=re.escape(f"'{key}' is searched or fixed and charging is 'free'")):
            load_space(bench.space(**blocks))


def test_keys_that_select_among_questions_are_searched_for_free(bench):
    searched = {"questions.keep.by": {"choice": ["none", "value"]}, "questions.value.batch": {"integers": [40, 80]}}
    space = load_space(bench.space(**FREE | {"search": searched, "pruning": {"grace": 1}, "concurrent": 2}))
    assert space.release == str(bench.folder / "run")


def test_what_names_a_search_of_a_recipe_has_no_release(bench):
    """A selection that was begun before there were releases to search is the same selection, and the same charge."""
    space = load_space(bench.space())
    assert space.shape("trials") == json.loads(space.model_dump_json(exclude={"trials", "release"}))


def test_paths_are_looked_up_beside_the_space_file(bench, monkeypatch):
    monkeypatch.chdir("/")
    space = load_space(bench.space(), ["trials=3"])
    assert (space.recipe, space.trials) == (str(bench.folder / "generator.yaml"), 3)
    assert space.metric.text == str(bench.folder / "public.txt")


def test_equal_values_are_the_same_release_and_share_the_account(bench):
    trials = bench.trials()
    one, same, other = (trials.recipe({"training.clipping_norm": norm}) for norm in (1.0, 1.0, 2.0))
    assert one.release_id == same.release_id != other.release_id
    assert {recipe.privacy.account for recipe in (one, same, other)} == {"search"}
    assert one.absolute().release_id == one.release_id


def test_infeasible_values_are_found_before_anything_runs(bench):
    search = {"training.steps": {"choice": [4, 10**12]}}
    trials = bench.trials(search=search, fixed={"training": {"sampling_rate": 1.0}})
    assert feasible(trials) == {"training.steps": 4}
    with pytest.raises(ConfigError):
        trials.charges({"training.steps": 10**12})
    assert not (bench.folder / "ledger.db").exists()


GIVEN = {  # where a key of a trial is wrong: changes to the recipe's file and to the space, the file that is named, and
    # the words of its line
    "in the recipe": ({"training": {"steps": -3}}, {}, "generator.yaml", "steps: -3"),
    "unknown in the recipe": ({"trainings": {"steps": 3}}, {}, "generator.yaml", "trainings:"),
    "fixed": ({}, {"fixed": {"training": {"max_tokens": "many"}}}, "space.yaml", "max_tokens: many"),
    "fixed and unknown": ({}, {"fixed": {"training": {"stepz": 3}}}, "space.yaml", "stepz: 3"),
    "fixed beside the recipe's": ({"training": {"steps": -3}}, {"fixed": {"seed": 3}}, "generator.yaml", "steps: -3"),
    "searched": ({}, {"search": {"training.steps": {"integers": [-5, -2]}}}, "space.yaml", "training.steps:"),
    "searched and unknown": ({}, {"search": {"training.stepz": {"integers": [2, 5]}}}, "space.yaml", "training.stepz:"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_refusal_of_a_trial_names_the_file_and_the_line_that_give_its_key(bench, name):
    changes, blocks, file, words = GIVEN[name]
    recipe = bench.folder / "generator.yaml"
    recipe.write_text(yaml.safe_dump(merged(yaml.safe_load(recipe.read_text()), changes)))
    space = bench.space(**blocks)
    with pytest.raises(ConfigError) as refused:
        bench.search(space)
    (line,) = [n for n, text in enumerate((bench.folder / file).read_text().splitlines(), 1) if text.strip() == words]
    assert str(refused.value).endswith(f"(line {line} of {bench.folder / file}).")
    assert not (bench.folder / "out").exists()


def test_a_refusal_of_a_trial_names_no_line_where_an_option_gives_its_key(bench):
    with pytest.raises(ConfigError, match=r"'training.steps' is -3: [^(]*$"):
        start_search(
            bench.space(), ["fixed.training.steps=-3"], bench.folder / "out", resume=False, console=Console(quiet=True)
        )


def test_what_only_the_recipe_tells_is_refused_before_anything_is_written(bench):
    with pytest.raises(ConfigError, match=r"fixed\.privacy\.composition"):
        bench.trials(fixed={"privacy": {"composition": "pld"}})
    with pytest.raises(ConfigError, match=r"^((?!hunter2).)*$"):
        bench.search(bench.space(fixed={"privacy": {"ledger": "postgresql://me:hunter2@db/ledger"}}))
    assert not (bench.folder / "out").exists()


def test_a_public_search_never_holds_the_private_corpus(bench):
    """Its recipes name the public file, and its best recipe the private one, which is never opened."""
    (bench.folder / "talk.parquet").unlink()
    corpus = {"phrases": "private-phrases.txt", "labels": ["private_label"]}
    fixed = {"corpus": corpus, "resources": {"features": "private-features"}}
    blocks = {"recipe": "seqpate.yaml", "fixed": fixed, "search": {"votes.queries": {"choice": [20, 40]}}}
    trials = bench.trials(charging="public", public=PUBLIC, budget=None, **blocks)
    assert trials.recipe({"votes.queries": 20}).corpus.source == "public.parquet"
    private = [str(bench.folder / name) for name in ("talk.parquet", "ledger.db", "secret.key")]
    assert not [path for path in private if path in repr(trials)]
    assert "private" not in json.dumps({key: trials.base[key] for key in ("corpus", "resources")})
    best = trials.best({"votes.queries": 20})
    assert private[0] in best
    assert "private-phrases.txt" in best


def test_how_two_stages_share_the_budget_can_be_searched(bench, tiny_base):
    (bench.folder / "trees.yaml").write_text(yaml.safe_dump(small_recipe(bench.folder, tiny_base)))
    steps, ratio = "stages.trees.steps", "stages.sigma_ratio"
    trials = bench.trials(
        recipe="trees.yaml",
        fixed={"privacy": {"epsilon": 2.0, "composition": "rdp"}, "stages": {"steps": 8}},
        search={steps: {"choice": [2, 4, 6]}, ratio: {"loguniform": [0.5, 2.0]}},
        metric={"name": "distinct_2"},
    )
    values = {steps: 2, ratio: 0.5}
    recipe = trials.recipe(values)
    assert (recipe.stages.trees.steps, recipe.stages.utterances.steps) == (2, 6)
    found = mechanisms(recipe)
    assert found[PARSES].noise_multiplier / found[UTTERANCES].noise_multiplier == pytest.approx(0.5)
    assert len(trials.bill(values)) == 4  # chunks of two steps
    assert parse_recipe(yaml.safe_load(trials.best(values))).release_id == recipe.release_id


@pytest.mark.parametrize(
    ("epsilon", "before", "state"), [(8.0, 0, "failed"), (8.0, 1, "failed"), (2.1, 1, "failed"), (1.9, 0, "refused")]
)
def test_a_trial_without_a_figure(bench, epsilon, before, state):
    """The account of epsilon 2.1 has room for the one trial of 2.0: its second chunk still fits after its first."""
    trials = bench.trials()
    trials.root.mkdir()
    study = open_study(trials.space, trials.root)
    distributions = {key: FloatDistribution(0.1, 10.0, log=True) for key in NORM}
    study.add_trial(create_trial(state=TrialState.FAIL, params=NORM, distributions=distributions))
    bill = trials.bill(NORM)
    ledger = bench.account(epsilon, plan=[event for _, event in bill])
    for number, (release, event) in enumerate(bill[:before]):
        ledger.reserve("search", release, f"{number:064x}", event)
    outcome = conclude(trials, ledger, None)
    assert [(row.state, row.charges, row.planned) for row in outcome.rows] == [(state, before, 2)]
    assert outcome.best is None


SELECT: dict[str, Any] = {"charging": "select", "searcher": "random", "select": {"mean": 4.0}}
NORMS = {"search": {"training.clipping_norm": {"uniform": [0.1, 1.0]}}}


NAN, INF = math.nan, math.inf
SCORES = [([-3.0, -2.0, -4.0], 1), ([-2.0, NAN], 0), ([NAN, -2.0, NAN, -9.0], 1), ([INF, -2.0], 1)]
SCORES += [([NAN, NAN], 0), ([-INF, NAN, -INF], 0), ([], None)]


@pytest.mark.parametrize(("scores", "winner"), SCORES)
def test_a_model_that_diverged_wins_against_no_other(bench, monkeypatch, scores, winner):
    trials, names = bench.trials(**SELECT, **NORMS), [f"t{i}" for i in range(9)]
    figures = iter(scores)

    def score(_, folder, __):
        folder.mkdir(parents=True)
        return next(figures)

    monkeypatch.setattr(selection.session, "ray_session", nullcontext)
    monkeypatch.setattr(selection, "_plan", lambda *_: {name: {} for name in names[: len(scores)]})
    monkeypatch.setattr(selection, "_score", score)
    recipe = trials.recipe({"training.clipping_norm": 1.0})
    found = selection._winner(trials, recipe, None, None)  # type: ignore[arg-type]
    assert found == ("" if winner is None else names[winner])
    left = [path.name for path in (bench.folder / "out" / "private").iterdir()]
    assert left == ([] if winner is None else [names[winner]]), "files of losers are deleted, those of the winner kept"


@pytest.mark.parametrize(
    ("key", "domain"), [("steps", {"choice": [4] * 999 + [6]}), ("sampling_rate", {"uniform": [0.1, 0.4]})]
)
def test_trials_of_a_selection_must_cost_the_same(bench, key, domain):
    """Every value of a list is compared with what is charged."""
    with pytest.raises(ConfigError, match="must cost the same"):
        same_event(bench.trials(**SELECT, search={f"training.{key}": domain}))


def test_a_drawn_trial_that_costs_more_is_refused_before_any_runs(bench, monkeypatch):
    trials = bench.trials(**SELECT, **NORMS)
    event = same_event(trials)
    key = create_key(bench.folder / "selection.key")
    (bench.folder / "out" / "private").mkdir(parents=True)
    charged = select_event(event, 4.0, "geometric")
    monkeypatch.setattr(selection, "draw_trials", lambda _: 3)
    drawn = iter([{"training.clipping_norm": 0.5}, {"training.steps": 6}, {"training.clipping_norm": 0.5}])
    monkeypatch.setattr(selection, "_drawn", lambda *_: next(drawn))
    for _ in range(2):  # a second try does not draw another plan
        with pytest.raises(ReleaseError, match="costs another amount than the search was charged for"):
            selection._plan(trials, charged, key)
    assert next(drawn, None) is None
