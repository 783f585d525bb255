"""Canaries: alike but distinct candidates, one drawn by key, users of their own; rank, exposure and leaks."""

import copy
import json
import math
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from effort import EFFORT
from scipy import stats

from rayprivacy.auditing.canaries import (
    CANDIDATES,
    KINDS,
    PLAN_FILE,
    CanaryPlan,
    canaries,
    canary_rows,
    candidates,
    exposure,
    leaked,
    rank,
    ranks,
    read_plan,
    record_plan,
    squeezed,
)
from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.core.errors import ConfigError, KeyFileError
from rayprivacy.core.keys import Key

pytestmark = pytest.mark.usefixtures("one_thread")
KEY, OTHER = Key.for_tests(), Key(b"x" * 32)
PLAN = CanaryPlan(repetitions=(1, 3), candidates=200)


def _plan(**change):
    return CanaryPlan.parse(PLAN.model_dump() | change)


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_candidates_are_distinct_alike_and_drawn_by_key(kind):
    found = candidates(kind, KEY)
    assert len({squeezed(secret.part) for secret in found}) == CANDIDATES
    assert all(secret.is_in(squeezed(secret.sentence)) for secret in found)
    few = candidates(kind, KEY, 50)
    assert [secret.whole for secret in few] == [secret.whole for secret in found[:50]]
    assert not {secret.whole for secret in few} & {secret.whole for secret in candidates(kind, OTHER, 50)}
    frame = few[0].sentence.removesuffix(few[0].whole)
    assert len(frame) > 20
    assert all(secret.sentence == frame + secret.whole for secret in few)


def test_the_planted_candidate_is_uniform_over_the_candidates():
    keys = [Key(number.to_bytes(32, "big")) for number in range(1, 301)]
    plan = _plan(kinds=("plate",), repetitions=(1, 1), candidates=10)
    places = np.array([[canary.place for canary in canaries(plan, key)] for key in keys])
    assert (places[:, 0] != places[:, 1]).all()
    for column in places.T:
        assert stats.chisquare(np.bincount(column, minlength=10)).pvalue > 1e-4


def test_each_repetition_is_a_user_of_its_own_and_the_recorded_plan_holds_no_secret(tmp_path):
    planted, added = canaries(PLAN, KEY), canary_rows(PLAN, KEY)
    assert len(added) == len(KINDS) * 4 == len(set(added["user"].to_pylist()))
    for canary in planted:
        assert added["text"].to_pylist().count(canary.secret.sentence) == len(canary.users)
        assert canary.secret.whole not in repr(canary) + repr(canary.secret)
        assert canary.users[0] not in repr(canary)
    assert read_plan(tmp_path, KEY) is None
    path = record_plan(tmp_path, PLAN, KEY)
    assert path == tmp_path / "private" / PLAN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(leaked([canary.secret for canary in planted], [path.read_text()]))
    assert read_plan(tmp_path, KEY) == PLAN
    with pytest.raises(KeyFileError, match="another key"):
        read_plan(tmp_path, OTHER)
    for broken in ("[]", "no json", json.dumps({"schema_version": 2})):
        path.write_text(broken)
        with pytest.raises(ConfigError, match="no plan of canaries"):
            read_plan(tmp_path, KEY)


def test_rank_and_exposure():
    losses = np.array([5.0, 1.0, 2.0, 2.0, 9.0])
    assert [rank(losses, place) for place in range(5)] == [4, 1, 2.5, 2.5, 5]
    assert [exposure(losses, place) for place in (1, 4)] == [pytest.approx(math.log2(5)), 0]
    assert rank(np.zeros(101), 7) == 51  # a model that cannot tell anything gives the middle, not the first place
    # Other planted secrets do not take the first place.
    assert ranks(lambda texts: np.arange(4.0), candidates("phone", KEY, 4), [0, 1, 3]) == [1.0, 1.0, 2.0]


def test_a_leak_is_found_in_other_spellings_and_nothing_else_is():
    secrets = [canary.secret for canary in canaries(_plan(repetitions=(1,)), KEY)]
    assert not any(leaked(secrets, ["hello there", "by the way, the person who helped me", ""]))
    for place, secret in enumerate(secrets):
        spread = f"-{'-'.join(secret.part)}-"
        for text in (f"so, {secret.whole.upper()}!", f"it was {secret.part}", spread, secret.whole.replace(" ", "\n")):
            assert leaked(secrets, ["first", text]) == [other == place for other in range(len(secrets))]
        half = secret.part[: len(secret.part) // 2]
        assert not any(leaked(secrets, [f"only {half} of it"]))


def test_losses_agree_with_one_text_at_a_time_without_a_cache(tiny_backbone):
    texts = [secret.sentence for secret in candidates("email", KEY, 40)]
    texts += ["it is easier", "it is easier to write " * 9, "hello"]
    scorer = ModelLoss(tiny_backbone, max_tokens=40, batch_tokens=300)
    documents = [tiny_backbone.document(text, 40)[1:] for text in texts]
    one, other = "", "topic: food | mood: good and very hungry\n"
    for prefixes in ([one] * 43, [other] * 43, [one, other] * 21 + [one]):
        found = scorer.per_token(texts, prefixes)
        for prefix, document, loss in zip(prefixes, documents, found, strict=True):
            context = tiny_backbone.prefix(prefix)
            ids = torch.tensor(context + document)
            with torch.no_grad():
                logits = tiny_backbone.model(input_ids=ids[None]).logits[0]
            expected = torch.nn.functional.cross_entropy(logits[len(context) - 1 : -1], ids[len(context) :])
            assert loss == pytest.approx(float(expected), rel=1e-5)
    whole = scorer.per_token(texts, [other] * 43) * np.array(list(map(len, documents)))
    assert replace(scorer, prefix=other)(texts) == pytest.approx(whole)
    assert scorer(texts[:1]) == pytest.approx(scorer(texts)[:1], rel=1e-5)  # one text has nothing to share


def test_a_model_fitted_to_a_canary_100_times_ranks_it_first(tiny_backbone):
    plan = CanaryPlan(kinds=("plate",), repetitions=(100,), candidates=1000 if EFFORT == 1 else 10_000)
    (canary,) = canaries(plan, KEY)
    model = copy.deepcopy(tiny_backbone.model).requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ids = torch.tensor([tiny_backbone.document(canary.secret.sentence, 100)])
    for _ in range(100):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    fitted = ModelLoss(replace(tiny_backbone, model=model.requires_grad_(False)), batch_tokens=8192)
    assert ranks(fitted, candidates("plate", KEY, plan.candidates), [canary.place]) == [1.0]


@pytest.mark.parametrize("kind", ["name", pytest.param("phone", marks=pytest.mark.exhaustive)])
def test_an_untouched_model_ranks_planted_secrets_uniformly(tiny_backbone, kind):
    """Forty secrets, planted by forty keys among the same candidates: no rank is more likely than another."""
    among = candidates(kind, KEY, 500)
    losses = ModelLoss(tiny_backbone, batch_tokens=8192)([secret.sentence for secret in among])
    assert len(np.unique(losses.round(6))) > 400  # the ranks are not those of ties
    drawn = [Key(bytes([number]) * 32) for number in range(1, 41)]
    places = [canaries(_plan(kinds=(kind,), repetitions=(1,), candidates=500), key)[0].place for key in drawn]
    found = [rank(losses, place) / 500 for place in places]
    assert stats.kstest(found, stats.uniform.cdf).pvalue > 1e-3
    assert sum(share <= 0.01 for share in found) <= 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: canaries(_plan(repetitions=(0,)), KEY), "repetitions is"),
        (lambda: _plan(kinds=["passport"]), "kinds"),
        (lambda: candidates("phone", KEY, 1), "from 2 to 10000"),
    ],
)
def test_wrong_plans_are_named(wrong, message):
    with pytest.raises(ConfigError, match=message):
        wrong()
