"""The settings of a trainer: what names a release, what the plan shows, and what is refused at once."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from ray.train import RunConfig, ScalingConfig
from trainer_bench import TRAINING, TrainerBench
from transformers import AutoModelForCausalLM, AutoTokenizer

import rayprivacy as rp
from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.trainer.method import LABEL_CHARS, label_lines, name_of_loss
from rayprivacy.trainer.trainer import GivenModel


@pytest.fixture
def settings(tmp_path, tiny_base, monkeypatch):
    monkeypatch.setattr(TrainerBench, "dataset", lambda _: None)  # settings need no rows, hence no Ray
    return TrainerBench(tmp_path, tiny_base)


def _loss(model, batch, factor=1.0):
    return factor * row_losses(model, batch)


class _Loss:
    def __call__(self, model, batch):
        return row_losses(model, batch)


def test_the_plan_shows_noise_and_cost(settings):
    outline = settings.trainer().plan()
    text = " ".join(str(outline).split())
    assert f"trainer: release {outline.recipe.release_id}" in text
    assert "DP-SGD: 4 steps, lora" in text
    assert "held-out" not in text
    assert 7.9 < outline.epsilon <= 8.0
    assert not (settings.folder / "ledger.db").exists()
    assert not settings.storage.exists()


def test_equal_settings_are_the_same_release(settings):
    def release(**changed):
        return settings.trainer(**changed).recipe.release_id

    ours = release()
    assert ours == release(workers=2, name="other", engine={"batch_tokens": 64})
    assert ours == release(adapter=AdapterConfig()), "blocks may be objects"
    assert ours == release(privacy=PrivacyConfig(epsilon=8.0, account="talk", key="elsewhere"))
    budget = {"epsilon": 8.0, "account": "talk"}
    others: list[dict[str, Any]] = [{"privacy": budget | each} for each in ({"epsilon": 4.0}, {"delta": 1e-5})]
    others += [{"seed": 1}, {"training": TRAINING | {"steps": 8}}, {"adapter": {"kind": "full"}}]
    others += [{"loss": _loss}, {"loss": _Loss()}, {"given": True}]
    assert len({ours, *(release(**each) for each in others)}) == len(others) + 1


def test_a_model_is_named_by_what_it_is(settings):
    first = settings.trainer(given=True)
    ours = first.recipe.release_id
    # What Ray Train may change: the number of its workers, and where it writes.
    elsewhere = RunConfig(storage_path=str(settings.folder / "elsewhere"))
    other = settings.trainer(given=True, run_config=elsewhere, scaling_config=ScalingConfig(num_workers=(1, 3)))
    assert (other.recipe.release_id, other.recipe.resources.workers) == (ours, 3)
    assert settings.trainer(given=True, run_config=None).path.name == ours
    assert first.recipe.model.base != other.recipe.model.base
    changed, wider, used = (settings.model() for _ in range(3))
    with torch.no_grad():
        changed["model"].get_output_embeddings().weight[0, 0] += 1
    wider["tokenizer"].add_special_tokens({"pad_token": "<|pad|>"})
    used["tokenizer"](["hello", "hello you"], max_length=4, truncation=True)
    same = [settings.trainer(**each).recipe.release_id == ours for each in (changed, wider, used)]
    assert same == [False, False, True]


def test_a_given_model_is_saved_as_it_is(settings):
    trainer = settings.trainer(given=True)
    assert trainer._given is not None
    settings.storage.mkdir()
    trainer._given.save(settings.storage)
    folder = Path(trainer.recipe.model.base)
    before = folder.stat().st_mtime_ns
    trainer._given.save(settings.storage)
    assert folder.stat().st_mtime_ns == before
    loaded = {"model": AutoModelForCausalLM.from_pretrained(folder), "tokenizer": AutoTokenizer.from_pretrained(folder)}
    assert settings.trainer(**loaded).recipe.release_id == trainer.recipe.release_id
    other = settings.trainer(**loaded, seed=2)
    with torch.no_grad():
        loaded["model"].get_output_embeddings().weight.mul_(2)
    with pytest.raises(rp.ConfigError, match="was changed after it was given"):
        other._given.save(settings.folder)  # type: ignore[union-attr]


def test_a_loss_is_named_by_its_source():
    name = name_of_loss(_loss)
    assert name.startswith("_loss-")
    assert name_of_loss(partial(_loss, factor=2.0)) == name
    assert name_of_loss(_Loss()).startswith("_Loss-")
    assert name_of_loss(row_losses) != name
    assert name_of_loss(eval("lambda model, batch: 0")).startswith("<lambda>-")


def test_labels_stand_before_the_text():
    labels = ("topic", "stars")
    assert label_lines(labels, {"topic": "food", "stars": "5", "text": "hi"}) == "topic: food\nstars: 5\n"
    assert label_lines(labels, {"topic": None, "stars": "x" * 99, "text": "hi"}) == f"stars: {'x' * LABEL_CHARS}\n"
    assert label_lines((), {"text": "hi"}) == ""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"training": {"step": 3}}, "'training.step' is not a key .* did you mean 'training.steps'"),
        ({"privacy": {"unit": "phrase"}}, "DP-SGD does not protect"),
        ({"privacy": {"unit": "record"}}, "corpus.max_records_per_user is 100"),
        ({"privacy": {"composition": "gdp"}}, "'privacy.composition' is 'gdp'"),
        ({"corpus": {"source": "chats.parquet"}}, "'corpus.source' is 'chats.parquet'"),
        ({"ledger": "postgresql://me:secret@host/ledger"}, "privacy.ledger holds a password"),
        ({"model": 3}, "the model is a int"),
        ({"scaling_config": ScalingConfig(num_workers=0)}, "'resources.workers' is 0"),
        ({"engine": {"gradients": "opacus", "gradient_checkpointing": True}}, "Opacus sees no layer that is computed"),
        ({"run_config": RunConfig(storage_path="s3://bucket/runs")}, "run_config.storage_path is not a path"),
        ({"given": True, "tokenizer": None}, "without its tokenizer"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, changed, says):
    with pytest.raises(rp.ConfigError, match=says):
        settings.trainer(**changed)


@pytest.mark.parametrize("kind", ["added", "wrapped and taken out"])
def test_a_model_with_an_adapter_inside_is_refused_at_once(tiny_base, kind):
    model, lora = AutoModelForCausalLM.from_pretrained(tiny_base), LoraConfig(r=2, target_modules=["q_proj"])
    if kind == "added":
        model.add_adapter(lora)
    else:
        get_peft_model(model, lora)
    with pytest.raises(ConfigError, match=r"^model\.base is 'a LlamaForCausalLM': it has an adapter inside"):
        GivenModel.of(model, AutoTokenizer.from_pretrained(tiny_base))
