"""`rayprivacy audit` on taggers: one that knows its users by heart, and one whose weights are noise."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from audited import Audited
from plain_shards import SPOKEN
from small_tagger import INTENTS, SLOTS
from typer.testing import CliRunner

from rayprivacy.auditing.directory import RunAudit, audit_run
from rayprivacy.auditing.scoring import Shadow
from rayprivacy.cli import app
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd.units import documents_of
from rayprivacy.methods.edp_sgd.recipe import METHOD
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.runs.audit import attacked_models
from rayprivacy.tagging.loss import TaggerLoss, in_order

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("one_thread")]
USERS, SHADOWS = 120, 4
LABELS = ("O", "B-food", "B-place")
Change = Callable[[Any, Backbone, Sequence[Any]], None]


def _corpus() -> pa.Table:
    """Requests whose intents and labels follow no rule: who can tell them has seen them."""
    draw = np.random.default_rng(3)
    return pa.table(
        {
            "user": [f"user-{user}" for user in range(USERS)],
            "text": pa.array([" ".join(draw.choice(SPOKEN, size=8)) for _ in range(USERS)], pa.large_string()),
            "intent": draw.choice(INTENTS, size=USERS).tolist(),
            "slots": [" ".join(draw.choice(LABELS, size=8)) for _ in range(USERS)],
        }
    )


class Directory(Audited):
    """A finished run of eDP-SGD, and shadow models on halves of its users."""

    def __init__(self, root: Path, base: Path, change: Change) -> None:
        settings = {
            "method": "edp_sgd",
            "corpus": {"source": "talk.parquet", "holdout": 0.4},
            "model": {"base": str(base), "dtype": "float32", "intents": INTENTS, "slots": SLOTS},
            "training": {"sampling_rate": 0.5, "expected_batch": 10, "steps": 5, "max_tokens": 14},
        }
        super().__init__(root, settings, _corpus())
        self._backbone, self._change = load_backbone(self.recipe.model), change
        self._learn(self.training, self.root)
        shadows = tuple(Shadow(number, root / f"shadow-{number}", self.key) for number in range(SHADOWS))
        for shadow in shadows:
            self._learn([row for row in self.training + self.heldout if shadow.holds(row["user"])], shadow.root)
        models = attacked_models(METHOD, self.recipe)
        self.audit = RunAudit(self.root, self.recipe.model, PrivacyUnit.USER, models, self.key, shadows, texts="")

    def _learn(self, rows: Sequence[Any], root: Path) -> None:
        model = copy.deepcopy(self._backbone.model).requires_grad_(True)
        self._change(model, self._backbone, documents_of(rows, self._backbone, METHOD.reads(self.recipe)))
        self.save(model, self._backbone.tokenizer, root)


def _learn(model: Any, backbone: Backbone, documents: Sequence[Any]) -> None:
    """Many passes without clipping and noise."""
    optimizer, order = torch.optim.AdamW(model.parameters(), lr=4e-3), np.random.default_rng(1)
    loss = TaggerLoss(1 + len(INTENTS), 1 + len(INTENTS) + len(LABELS) + len(SLOTS))
    for _ in range(150):
        chosen = [documents[at] for at in order.permutation(len(documents))[:32]]
        optimizer.zero_grad()
        for batch in in_order(chosen, torch.device("cpu")):
            loss(model, batch).mean().backward()
        optimizer.step()


def _shake(model: Any, backbone: Backbone, documents: Sequence[Any]) -> None:
    """Noise in all weights, of another draw for each model."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(sum(int(each.ids.sum()) for each in documents))
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Directory:
    """A run whose tagger learnt its users by heart."""
    return Directory(tmp_path_factory.mktemp("leaking"), tiny_bert, _learn)


def test_an_overtrained_tagger_is_flagged_by_every_attack(leaking: Directory) -> None:
    found = audit_run(leaking.audit)
    assert found["verdict"]["flagged"]
    assert "FLAGGED by membership" in found["verdict"]["sentence"]
    areas = {name: attack["auc"] for name, attack in found["membership"].items()}
    assert set(areas) == {"loss", "calibrated", "LiRA", "LiRA, offline", "shadow attack"}
    assert all(area > 0.75 for area in areas.values()), areas
    assert (found["overlap"], found["sample"]["shadows"]) == (None, SHADOWS)


def test_a_tagger_of_noise_is_not(tmp_path: Path, tiny_bert: Path) -> None:
    found = audit_run(Directory(tmp_path, tiny_bert, _shake).audit)
    assert not found["verdict"]["flagged"]
    for name, attack in found["membership"].items():
        low, high = attack["auc_interval"]
        assert low < 0.55, (name, low, high)
        assert attack["auc"] < 0.7, name


def test_the_command_attacks_a_tagger_and_tells_nothing(leaking: Directory) -> None:
    done = CliRunner().invoke(app, ["audit", str(leaking.root)], env={"COLUMNS": "200"})
    assert done.exception is None, done.exception
    assert "FLAGGED" in done.stdout
    assert "words in a row" not in done.stdout
    stored = (leaking.root / "audit.json").read_text()
    assert json.loads(stored)["releasable"] is False
    for row in leaking.training + leaking.heldout:
        assert row["text"] not in done.stdout + stored
        assert f"{row['user']} " not in done.stdout + stored
