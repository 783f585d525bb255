"""The recipe of domain-private training: what is refused, noise for noisy steps alone, and what names the release."""

import json
import pickle
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import mechanism

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import leaves
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import AccountKind
from rayprivacy.corpus.layout import Layout, finish, prepare
from rayprivacy.corpus.users import clean
from rayprivacy.methods.domain_private import method
from rayprivacy.methods.domain_private.method import reading_of
from rayprivacy.methods.domain_private.plan import STEPS, plan_run, policy_name
from rayprivacy.methods.domain_private.reading import FULL, REDACTED, Redacting, redacting
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.methods.registry import load_recipe
from rayprivacy.policies import settings
from rayprivacy.policies.policy import MARK
from rayprivacy.policies.settings import make_policy
from rayprivacy.runs.account import open_account
from rayprivacy.runs.files import dump_recipe
from rayprivacy.runs.outline import Outline
from rayprivacy.tuning.trials import _require_one_account

SIZES = {"steps": 200, "sampling_rate": 0.012, "expected_batch": 60, "clipping_norm": 0.1}
PRIVACY = {"epsilon": 8.0, "delta": 1e-6, "composition": "pld"}
GIVEN = SIZES | {"noise_multiplier": 2.0}
QUICKER = PRIVACY | {"composition": "rdp"}


mechanism_of = partial(mechanism, stage=STEPS)


def _recipe(**blocks):
    return DomainPrivateRecipe.parse({"training": SIZES, "privacy": PRIVACY} | blocks)


def test_noise_is_calibrated_for_the_noisy_steps_alone():
    recipe = _recipe(privacy=QUICKER)
    steps, every = mechanism_of(recipe), mechanism_of(_recipe(privacy=QUICKER, redacted={"schedule": "none"}))
    assert 5 <= steps.event.count <= 25
    assert every.event.count == 200
    assert steps.noise_multiplier < every.noise_multiplier
    assert 0.99 * 8 < epsilon([steps.event], 1e-6, "rdp") <= 8
    assert epsilon([every.event], 1e-6, "rdp") <= 8


def test_noise_that_falls_is_calibrated_for_the_levels_that_noisy_steps_have():
    """Of 40 levels of 5 steps, 16 are told apart; the nine noisy steps are among the last of them."""
    falling = SIZES | {"chunk": 5, "noise_schedule": {"kind": "linear", "tau": 0.01}}
    recipe = _recipe(training=falling, privacy=QUICKER)
    steps = mechanism_of(recipe)
    assert 0.99 * 8 < epsilon([steps.event], 1e-6, "rdp") <= 8
    assert steps.redacted == mechanism_of(_recipe(privacy=QUICKER)).redacted
    noisy = [step for step, redacted in enumerate(steps.redacted) if not redacted]
    charged = [(leaf.event.noise_multiplier, times) for leaf, times in leaves(steps.event)]  # type: ignore[attr-defined]
    assert len(charged) > 1
    assert sum(times for _, times in charged) == 9
    made = sorted((steps.noise_std(step) / 0.1 for step in noisy), reverse=True)
    assert made == pytest.approx([sigma for sigma, times in charged for _ in range(times)])
    named = plan_run(recipe).figures["Noise multipliers of noisy steps"]
    assert named == ", ".join(f"{sigma:.4g} ({times} steps)" for sigma, times in charged)


def test_micro_batches_are_clipped_where_that_is_charged():
    recipe = _recipe(training=SIZES | {"microbatches": 16}, privacy=QUICKER)
    steps, plain = mechanism_of(recipe), mechanism_of(_recipe(privacy=QUICKER))
    assert steps.event == plain.event
    noisy = steps.redacted.index(False)
    assert steps.noise_std(noisy) == 2 * plain.noise_std(noisy) > 0
    assert any("16 micro-batches" in sentence for sentence in plan_run(recipe).assumptions)


def test_light_noise_is_the_least_that_fits_the_central_account(tmp_path):
    privacy = QUICKER | {"ledger": f"sqlite:///{tmp_path}/ledger.db"}
    central = {"account": "users", "epsilon": 40.0}
    recipe = _recipe(privacy=privacy, redacted={"central": central})
    steps, plan = mechanism_of(recipe), plan_run(recipe)
    assert replace(steps, light=0.0) == mechanism_of(_recipe(privacy=privacy))
    assert plan.second is not None
    assert plan.second.event == steps.central_event_of(range(200))
    assert 0.9 * 40 < epsilon([plan.second.event], 1e-6, "rdp") <= 40
    assert "account 'users' pays for all 200 steps" in plan.figures["For plain differential privacy"]
    given = _recipe(privacy=privacy, redacted={"central": central, "noise_multiplier": 2.0})
    assert mechanism_of(given).light == 2.0 > steps.light
    assert len({each.release_id for each in (recipe, given, _recipe(privacy=privacy))}) == 3
    with closing(open_account(recipe, plan)) as ledger:
        account = ledger.account("users")
        assert (account.kind, account.epsilon, account.corpus) == (AccountKind.CENTRAL, 40.0, "private text")
    with pytest.raises(ConfigError, match="charges account 'users' besides its own, and a search charges one"):
        _require_one_account(plan)
    little = _recipe(privacy=privacy, redacted={"central": central, "noise_multiplier": 0.3})
    with pytest.raises(BudgetRefusedError, match="account 'users' has 40 of 40 left"):
        open_account(little, plan_run(little))


def test_the_plan_says_what_the_claim_is_and_what_it_is_not():
    recipe = _recipe()
    plan = plan_run(recipe)
    text, noise = " ".join(str(Outline(recipe, plan)).split()), mechanism_of(recipe).noise_multiplier
    assert plan.protection.kind is AccountKind.SELECTIVE
    assert plan.policy == policy_name(recipe) == f"patterns {recipe.policy.digest}"
    for said in (plan.policy, "9 of 200", "central: non-private run", "noise multiplier 0.4341", "selective"):
        assert said in text
    published = list(plan.as_published.values())
    assert published[0] > noise
    assert published[2] < published[1] == 8.0, "the paper's small epsilon of a schedule is bookkeeping"
    two_stages = list(plan_run(_recipe(redacted={"schedule": "step"})).as_published.values())
    assert two_stages[2] == pytest.approx(8.0, rel=0.3)


def test_the_reading_of_a_run_follows_what_is_charged():
    recipe = _recipe(corpus={"labels": ["domain"]}, codes={"values": {"domain": ["air", "media"]}})
    steps, text = mechanism_of(recipe), Redacting(make_policy(recipe.policy), 100)
    reading = redacting(recipe.privacy.unit, ("domain",), recipe.control_codes.prefix, 64, text, steps.redacted)
    reading.check(steps.steps, steps.redacted_steps)
    row = {"text": "call 555 123 4567 now", "domain": "air"}
    assert reading.text(row, 0) == "call <REDACTED> now"
    assert reading.text(row, 1) == row["text"]
    assert reading.context(row) == "domain: air\n"
    assert pickle.loads(pickle.dumps(reading)).text(row, 0) == "call <REDACTED> now"
    whole = reading_of(recipe)
    assert (whole.text(row, 0), whole.versions) == (row["text"], 1)


@given(st.integers(1, 60), st.text("0123456789", min_size=5, max_size=30), st.booleans())
def test_a_text_is_cut_when_the_policy_has_seen_all_of_it(cut, code, joined):
    """A value that is cut matches nothing, and where a cut falls tells how long it was: no copy may depend on it."""
    join = {"join": {"by": "by", "order": "order", "prefix": "USR: "}} if joined else {}
    recipe = _recipe(corpus={"max_chars": cut, **join})
    layout, text = Layout(recipe.sharded_corpus, 1, 1), method._text_of(recipe)

    def copies(value):
        rows = {"user": ["ann"], "text": [f"my code is {value} please send the form"], "by": ["1"], "order": ["1"]}
        kept = rows if joined else {name: rows[name] for name in ("user", "text")}
        ready = prepare(clean(pa.table(kept), layout.config.max_chars)[0], Key.for_tests(), layout)[0]
        rows_of_part = finish(ready, int(ready["file"][0].as_py()), Key.for_tests(), layout)[0].to_pylist()
        assert len(text(rows_of_part[0], FULL)) <= cut
        assert reading_of(recipe).text(rows_of_part[0], 0) == text(rows_of_part[0], FULL)
        return [text(row, REDACTED) for row in rows_of_part]

    whole = ("USR: " if joined else "") + f"my code is {MARK} please send the form"
    begin, end = whole.index(MARK), whole.index(MARK) + len(MARK)
    expected = whole[: begin if begin < cut < end else cut].rstrip()  # no part of a mark is left
    assert copies(code) == copies("123456789") == [expected]


def test_policy_schedule_and_seed_are_part_of_the_release_without_their_file_too(tmp_path):
    words, resolved = tmp_path / "words.yaml", tmp_path / "recipe.yaml"
    words.write_text("- seat\n")
    keywords = {"kind": "keywords", "file": str(words)}
    first = _recipe(policy=keywords)
    others = [_recipe(policy=keywords, **changed) for changed in ({"seed": 1}, {"redacted": {"schedule": "linear"}})]
    words.write_text("- seat\n- flight\n")
    others += [_recipe(), _recipe(policy=keywords)]
    assert len({each.release_id for each in (first, *others)}) == 5
    with pytest.raises(ConfigError, match="put its public file back"):
        plan_run(first)
    resolved.write_text(dump_recipe(first))
    words.unlink()
    assert load_recipe(resolved).release_id == first.release_id


def test_policies_that_keep_other_words_need_accounts_of_their_own(tmp_path):
    """What stands in front of turns is never hidden: another prefix is another function, and another claim."""

    def recipe(prefix):
        join = {"by": "talk", "order": "turn", "prefix": prefix}
        privacy = QUICKER | {"ledger": f"sqlite:///{tmp_path}/ledger.db"}
        return _recipe(privacy=privacy, training=GIVEN, corpus={"join": join}, policy={"kinds": ["email"]})

    first, second = recipe("USR: "), recipe("SYS: ")
    assert plan_run(first).policy != plan_run(second).policy
    assert mechanism_of(first).parameters["policy"] in plan_run(first).policy
    for _ in range(2):
        with closing(open_account(first, plan_run(first))) as ledger:
            account = ledger.terms("default").account
            assert (account.kind, account.parameters["policy"]) == (AccountKind.SELECTIVE, policy_name(first))
    with pytest.raises(LedgerError, match="protects other text"):
        open_account(second, plan_run(second))
    with pytest.raises(ConfigError, match=r"corpus\.join\.prefix has 'a@b\.org', which the policy hides"):
        plan_run(recipe("USR: a@b.org "))


def test_the_account_of_a_classifier_names_its_scores(tmp_path, monkeypatch):
    """Not the file that they were trained on alone: another machine may make other scores of it."""
    public, rows = tmp_path / "public.jsonl", [("seat on a flight", "air"), ("internet plan", "media")]
    public.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    policy = {"kind": "classifier", "train": str(public)}
    recipe = _recipe(policy=policy, privacy=QUICKER, training=GIVEN)
    made = make_policy(recipe.policy)
    assert plan_run(recipe).policy == f"classifier {made.digest}" != f"classifier {recipe.policy.digest}"
    scores = made._scores  # type: ignore[attr-defined]
    monkeypatch.setattr(settings, "_scores", lambda _: replace(scores, bias=scores.bias + 1e-6))
    assert plan_run(recipe).policy != f"classifier {made.digest}"
