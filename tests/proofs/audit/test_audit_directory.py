"""`rayprivacy audit` on runs whose model, or tagger, knows its users by heart, and on others that know nothing."""

import copy
import json
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from plain_shards import EVENTS, SPOKEN, write_shards
from small_tagger import INTENTS, SLOTS
from typer.testing import CliRunner

from rayprivacy.auditing import directory
from rayprivacy.auditing.bounds import Profile, clopper_pearson
from rayprivacy.auditing.canaries import CanaryPlan, canaries, canary_rows, record_plan
from rayprivacy.auditing.claim import read_claim
from rayprivacy.auditing.directory import NOTES, RunAudit, audit_run
from rayprivacy.auditing.extraction import Overlap
from rayprivacy.auditing.population import Population
from rayprivacy.auditing.scoring import Shadow
from rayprivacy.cli import app
from rayprivacy.core.errors import ConfigError, KeyFileError, RayPrivacyError, ShardError
from rayprivacy.core.files import write_atomic, write_json
from rayprivacy.core.keys import Key, create_key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import read_holdout, read_part
from rayprivacy.dpsgd.units import documents_of
from rayprivacy.methods.edp_sgd.recipe import METHOD
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.audit import attacked_models
from rayprivacy.runs.files import dump_recipe
from rayprivacy.tagging.loss import TaggerLoss, in_order

pytestmark = pytest.mark.usefixtures("one_thread")
USERS, TEXTS = 150, 2
PARTS, SECRET = 2, b"7" * 32
PLAN = CanaryPlan(kinds=("phone", "plate"), repetitions=(1, 8), candidates=200)


class Audited:
    """Shards, recipe and certificate; the rows that were trained on, and those held out."""

    def __init__(self, root, settings, table):
        self.root, key_path = root / "run", root / "secret.key"
        write_atomic(key_path, SECRET, 0o600)  # who is held out must not change from day to day
        self.key = load_key(key_path)
        privacy = {"key": str(key_path), "ledger": "sqlite:///ledger.db"}
        self.recipe = parse_recipe(settings | {"privacy": privacy})
        self.shards = self.root / "private" / "shards"
        write_shards(table, self.key, self.recipe, self.shards, PARTS)
        (self.root / "recipe.yaml").write_text(dump_recipe(self.recipe))
        body = {"epsilon": 3.0, "delta": 1e-6, "kind": "central", "unit": "user", "events": EVENTS}
        write_json(self.root / "certificate.json", body)
        self.training = [row for part in range(PARTS) for row in read_part(self.shards, part).to_pylist()]
        self.heldout = read_holdout(self.shards).to_pylist()

    def save(self, model, tokenizer, root=None):
        save_model(model, tokenizer, (root or self.root) / "model", "release", "A test.")


def _corpus():
    draw = np.random.default_rng(11)
    texts = [" ".join(draw.choice(SPOKEN, size=10)) for _ in range(USERS * TEXTS)]
    columns = {"user": [f"user-{n // TEXTS}" for n in range(len(texts))], "text": pa.array(texts, pa.large_string())}
    return pa.table(columns | {"topic": [("sun", "soup")[n % 2] for n in range(len(texts))]})


def _fitted(tokenizer, texts, steps):
    """The tiny model after many passes over the private texts, behind their control codes."""
    model = copy.deepcopy(tokenizer.model).requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rows = [tokenizer.document(text, 60) for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.end] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randperm(len(rows), generator=order)[:48]
        optimizer.zero_grad()
        model(input_ids=ids[chosen], labels=labels[chosen]).loss.backward()
        optimizer.step()
    return model


class Directory(Audited):
    """A finished run of the generator with planted canaries."""

    def __init__(self, root, base, backbone, *, steps):
        settings = {
            "method": "generator",
            "corpus": {"source": "talk.parquet", "labels": ["topic"], "holdout": 0.35},
            "codes": {"values": {"topic": ["sun", "soup"]}},
            "training": {"sampling_rate": 0.5, "expected_batch": 10, "steps": 5, "max_tokens": 60},
            "model": {"base": str(base), "dtype": "float32"},
        }
        both = [_corpus(), canary_rows(PLAN, Key(SECRET))]
        super().__init__(root, settings, pa.concat_tables(both, promote_options="default"))
        record_plan(self.root, PLAN, self.key)
        texts = [f"topic: {row['topic'] or 'other'}\n{row['text']}" for row in self.training]
        self.save(_fitted(backbone, texts, steps) if steps else backbone.model, backbone.tokenizer)
        self.write(["good morning to all of you"])

    def write(self, texts):
        pq.write_table(pa.table({"text": texts}), self.root / "synthetic.parquet")

    def call(self, *options):
        done = CliRunner().invoke(app, ["audit", str(self.root), *options], env={"COLUMNS": "200"})
        if done.exception:
            raise done.exception
        return done.stdout

    @cached_property
    def audited(self):
        """What is printed, and what is written."""
        return self.call(), json.loads((self.root / "audit.json").read_text())

    def users(self, rows):
        return {row["user"] for row in rows} - {user for each in canaries(PLAN, self.key) for user in each.users}


@pytest.fixture(scope="module")
def leaking(tmp_path_factory, tiny_base, tiny_backbone):
    return Directory(tmp_path_factory.mktemp("leaking"), tiny_base, tiny_backbone, steps=80)


@pytest.fixture(scope="module")
def sound(tmp_path_factory, tiny_base, tiny_backbone):
    return Directory(tmp_path_factory.mktemp("sound"), tiny_base, tiny_backbone, steps=0)


def test_a_model_that_knows_its_users_by_heart_is_flagged(leaking):
    found = leaking.audited[1]
    assert found["verdict"]["flagged"]
    assert "FLAGGED by membership" in found["verdict"]["sentence"]
    for name in ("loss", "calibrated"):
        attack = found["membership"][name]
        assert attack["auc"] > 0.95
        assert attack["points"][2]["interval"][0] > attack["points"][2]["admitted_by_events"]


def test_the_public_base_is_not_flagged_and_the_page_says_what_figures_cannot_show(sound):
    printed, found = sound.audited
    assert not found["verdict"]["flagged"]
    assert found["verdict"]["sentence"].startswith("Not flagged")
    low, high = found["membership"]["loss"]["auc_interval"]
    assert low < 0.5 < high
    assert found["membership"]["calibrated"]["auc"] == 0.5  # its own reference: no user is above another
    assert found["releasable"] is False
    assert stat.S_IMODE((sound.root / "audit.json").stat().st_mode) == 0o600
    for said in (found["verdict"]["sentence"], *NOTES.values(), "internal"):
        assert said in " ".join(printed.split())


def test_units_texts_and_claims_are_those_of_the_run(sound):
    found = sound.audited[1]
    members, others = sound.users(sound.training), sound.users(sound.heldout)
    assert found["sample"] == {"members": len(members), "others": len(others), "records_at_most": 4, "shadows": 0}
    assert len(members) + len(others) == USERS
    assert found["claim"] == {"kind": "central", "epsilon": 3.0, "delta": 1e-6, "unit": "user"}
    point = found["membership"]["loss"]["points"][2]
    assert point["admitted_by_claim"] > 0.9
    upper = clopper_pearson(int(0.1 * len(others)), len(others))[1]  # of false alarms
    expected = NormalDist().cdf(NormalDist().inv_cdf(upper) + 0.5)
    assert point["admitted_by_events"] == pytest.approx(expected, abs=0.03)


def test_canaries_of_the_leaking_model_come_first_and_those_of_the_base_do_not(leaking, sound):
    shared = [each for each in leaking.audited[1]["canaries"] if each["users"] == 8]
    assert [each["rank"] for each in shared] == [1.0, 1.0]
    assert all(each["exposure"] == pytest.approx(np.log2(199), abs=1e-3) for each in shared)
    assert all(each["chance_admitted"] is None for each in shared)  # a group of eight is not what the claim is about
    assert np.mean([each["rank"] for each in sound.audited[1]["canaries"]]) > 10
    for run in (leaking, sound):
        trained = {row["user"] for row in run.training}
        for each, canary in zip(run.audited[1]["canaries"], canaries(PLAN, run.key), strict=True):
            assert each["trained_users"] == len(trained & set(canary.users))


def test_overlap_and_leaks_of_synthetic_text_are_counted(sound):
    ordinary = [row["text"] for row in sound.training if row["user"] in sound.users(sound.training)]
    drawn = Population(sound.shards, PrivacyUnit.USER, sound.key).others(20, 8)
    held_out = next(each.rows[0]["text"] for each in drawn if each.rows[0]["user"] in sound.users(sound.heldout))
    secret = canaries(PLAN, sound.key)[1].secret
    assert sound.audited
    sound.write([*ordinary[:2], held_out, f"call me: {secret.part}", "hello"])
    try:
        found = json.loads(sound.call("--users", "20", "--json"))
    finally:
        sound.write(["good morning to all of you"])
    assert (found["sample"]["members"], found["sample"]["others"]) == (20, 20)
    assert [each["verbatim"] for each in found["canaries"]] == [False, True, False, False]
    overlap = found["overlap"]
    assert (overlap["synthetic_texts"], overlap["long_enough"]) == (5, 3)
    assert overlap["training"] == pytest.approx(0.4)  # texts are ten words drawn at random: no two share eight
    assert overlap["heldout"] == pytest.approx(0.2)
    assert overlap["training_as_many_users"] <= 0.4


def test_no_private_text_and_no_user_is_written_or_printed(leaking):
    told = leaking.audited[0] + leaking.call("--json") + (leaking.root / "audit.json").read_text()
    for row in leaking.training + leaking.heldout:
        assert row["text"] not in told
        assert not re.search(rf"\b{row['user']}\b", told)
    assert not any(canary.secret.part in told for canary in canaries(PLAN, leaking.key))


@pytest.fixture
def copied(sound, tmp_path):
    return shutil.copytree(sound.root, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("recipe.yaml", ConfigError, "no run directory"),
        ("certificate.json", ConfigError, "no certificate.json"),
        ("model", ConfigError, "has no model"),
        ("synthetic.parquet", ConfigError, "has no synthetic.parquet"),
        ("private/shards", ConfigError, "audit it before `rayprivacy clean`"),
        ("private/shards/holdout.parquet", ShardError, "holdout.parquet is missing"),
    ],
)
def test_what_is_missing_is_named(copied, name, error, message):
    (copied / name).rename(copied.parent / "gone")
    _refused(str(copied), error, message)


def _refused(argument, error, message):
    done = CliRunner().invoke(app, ["audit", argument])
    assert isinstance(done.exception, error)
    assert message in str(done.exception)


def test_other_keys_uris_and_phrases_are_refused(copied, tmp_path, sound):
    create_key(tmp_path / "other.key")
    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(re.sub(r"key: .*secret.key", f"key: {tmp_path}/other.key", recipe))
    _refused(str(copied), KeyFileError, "of another key")
    _refused("s3://bucket/run", ConfigError, "is a URI")
    with pytest.raises(ConfigError, match=r"privacy\.unit is 'phrase'"):
        audit_run(RunAudit(sound.root, ModelConfig(), PrivacyUnit.PHRASE, (), sound.key))


def test_an_error_of_other_code_leaves_without_the_text_that_it_failed_on(monkeypatch):
    def fails(root):
        raise ValueError("the private row of user-7")

    monkeypatch.setattr(directory, "read_claim", fails)
    with pytest.raises(RayPrivacyError, match="the audit stopped with ValueError") as caught:
        audit_run(SimpleNamespace(root=Path()))  # type: ignore[arg-type]
    assert "user-7" not in str(caught.value)
    assert caught.value.__context__ is None


def test_runs_of_words_are_compared_without_case_and_punctuation_and_at_full_length():
    private = ["my sister broke her left arm on the way to the early train", "i never told anybody that we like soup"]
    texts = ["My sister -- broke HER left arm, on the way", "my sister broke her left arm on a boat", "hm"]
    overlap = Overlap(texts, 8)
    assert (overlap.long_enough, overlap.shared_with(private), overlap.shared_with([])) == (2, {0}, set())
    assert Overlap(texts[1:2], 7).shared_with(private) == {0}
    with pytest.raises(ConfigError, match="words is 0"):
        Overlap(["a"], 0)


def test_a_claim_is_read_with_its_events_where_they_are_told(tmp_path):
    sampled = EVENTS[0] | {"kind": "poisson-sampled-gaussian", "q": 0.1, "sigma_eff": 1.0, "count": 10}
    selected = EVENTS[0] | {"kind": "repeat-and-select", "sigma_eff": None}
    body = {"epsilon": 3.0, "delta": 1e-6, "kind": "central", "unit": "user"}
    write_json(tmp_path / "certificate.json", body | {"events": [EVENTS[0], sampled]})
    both = read_claim(tmp_path).events
    step = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    assert both == Profile.of([SelfComposedDpEvent(GaussianDpEvent(10.0), 25), SelfComposedDpEvent(step, 10)])
    write_json(tmp_path / "certificate.json", body | {"events": [EVENTS[0], selected]})
    partly = read_claim(tmp_path)
    assert partly.events is None
    assert partly.strictest == Profile.claimed(3.0, 1e-6)
    write_json(tmp_path / "certificate.json", {"epsilon": 3.0})
    with pytest.raises(ConfigError, match="is no certificate"):
        read_claim(tmp_path)


def test_who_is_drawn_depends_on_unit_and_key_and_not_on_the_others(sound):
    def drawn(unit=PrivacyUnit.USER, key=sound.key, most=30):
        return [each.rows for each in Population(sound.shards, unit, key).members(most, 8)]

    assert [len(rows) for rows in drawn(PrivacyUnit.RECORD, most=10_000)] == [1] * len(sound.training)
    assert len(drawn(most=10_000)) == len({row["user"] for row in sound.training})
    few, other = ([rows[0]["user"] for rows in drawn(key=key)] for key in (sound.key, Key.for_tests()))
    assert [rows[0]["user"] for rows in drawn(most=10)] == few[:10]
    assert set(few) != set(other)


REQUESTERS, SHADOWS = 120, 4
LABELS = ("O", "B-food", "B-place")
Change = Callable[[Any, Backbone, Sequence[Any]], None]


def _requests():
    """Requests whose intents and labels follow no rule: who can tell them has seen them."""
    draw = np.random.default_rng(3)
    return pa.table(
        {
            "user": [f"user-{user}" for user in range(REQUESTERS)],
            "text": pa.array([" ".join(draw.choice(SPOKEN, size=8)) for _ in range(REQUESTERS)], pa.large_string()),
            "intent": draw.choice(INTENTS, size=REQUESTERS).tolist(),
            "slots": [" ".join(draw.choice(LABELS, size=8)) for _ in range(REQUESTERS)],
        }
    )


class TaggerRun(Audited):
    """A finished run of eDP-SGD, and shadow models on halves of its users."""

    def __init__(self, root, base, change):
        settings = {
            "method": "edp_sgd",
            "corpus": {"source": "talk.parquet", "holdout": 0.4},
            "model": {"base": str(base), "dtype": "float32", "intents": INTENTS, "slots": SLOTS},
            "training": {"sampling_rate": 0.5, "expected_batch": 10, "steps": 5, "max_tokens": 14},
        }
        super().__init__(root, settings, _requests())
        self._backbone, self._change = load_backbone(self.recipe.model), change
        self._learn(self.training, self.root)
        shadows = tuple(Shadow(number, root / f"shadow-{number}", self.key) for number in range(SHADOWS))
        for shadow in shadows:
            self._learn([row for row in self.training + self.heldout if shadow.holds(row["user"])], shadow.root)
        models = attacked_models(METHOD, self.recipe)
        self.audit = RunAudit(
            self.root, self.recipe.model, PrivacyUnit.USER, models, self.key, shadows=shadows, texts=""
        )

    def _learn(self, rows, root):
        model = copy.deepcopy(self._backbone.model).requires_grad_(True)
        self._change(model, self._backbone, documents_of(rows, self._backbone, METHOD.reads(self.recipe)))
        self.save(model, self._backbone.tokenizer, root)


def _learn(model, backbone, documents):
    optimizer, order = torch.optim.AdamW(model.parameters(), lr=4e-3), np.random.default_rng(1)
    loss = TaggerLoss(1 + len(INTENTS), 1 + len(INTENTS) + len(LABELS) + len(SLOTS))
    for _ in range(150):
        chosen = [documents[at] for at in order.permutation(len(documents))[:32]]
        optimizer.zero_grad()
        for batch in in_order(chosen, torch.device("cpu")):
            loss(model, batch).mean().backward()
        optimizer.step()


def _shake(model, backbone, documents):
    """Noise in all weights, of another draw for each model."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(sum(int(each.ids.sum()) for each in documents))
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.fixture(scope="module")
def leaking_tagger(tmp_path_factory, tiny_bert):
    return TaggerRun(tmp_path_factory.mktemp("leaking_tagger"), tiny_bert, _learn)


@pytest.mark.exhaustive
def test_an_overtrained_tagger_is_flagged_by_every_attack(leaking_tagger):
    found = audit_run(leaking_tagger.audit)
    assert found["verdict"]["flagged"]
    assert "FLAGGED by membership" in found["verdict"]["sentence"]
    areas = {name: attack["auc"] for name, attack in found["membership"].items()}
    assert set(areas) == {"loss", "calibrated", "LiRA", "LiRA, offline", "shadow attack"}
    assert all(area > 0.75 for area in areas.values()), areas
    assert (found["overlap"], found["sample"]["shadows"]) == (None, SHADOWS)


@pytest.mark.exhaustive
def test_a_tagger_of_noise_is_not(tmp_path, tiny_bert):
    found = audit_run(TaggerRun(tmp_path, tiny_bert, _shake).audit)
    assert not found["verdict"]["flagged"]
    for name, attack in found["membership"].items():
        low, high = attack["auc_interval"]
        assert low < 0.55, (name, low, high)
        assert attack["auc"] < 0.7, name


@pytest.mark.exhaustive
def test_the_command_attacks_a_tagger_and_tells_nothing(leaking_tagger):
    done = CliRunner().invoke(app, ["audit", str(leaking_tagger.root)], env={"COLUMNS": "200"})
    assert done.exception is None, done.exception
    assert "FLAGGED" in done.stdout
    assert "words in a row" not in done.stdout
    assert NOTES["canaries"][:30] not in done.stdout
    assert NOTES["membership"][:30] in done.stdout
    stored = (leaking_tagger.root / "audit.json").read_text()
    assert json.loads(stored)["releasable"] is False
    for row in leaking_tagger.training + leaking_tagger.heldout:
        assert row["text"] not in done.stdout + stored
        assert f"{row['user']} " not in done.stdout + stored
