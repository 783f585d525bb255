"""The base model of a run after training on public text: made once, and kept in the public folder of the run.

It is kept under a digest of the base, the settings and the text, as a folder that every process of the run loads in
place of `model.base`. A run beside this one that has a model under the same digest shares it: the trials of a search,
say, are trained from one. Its files are linked, so that it takes no more space, and outlives the other run.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.files import read_json, write_json
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.memory import trim_memory
from rayprivacy.models.pretraining import PublicText, pretrained
from rayprivacy.models.save import save_model, write_card
from rayprivacy.models.settings import OF_OWN_TEXTS, ModelConfig, PretrainConfig
from rayprivacy.runs.directory import FOUND, INPUTS, R, Run
from rayprivacy.runs.own_texts import own_texts
from rayprivacy.runs.pretrain_plan import HELD_ROWS, PRETRAINING, texts_of
from rayprivacy.runs.pretrained_recipe import PretrainedRecipe

HOW = "A public base model, trained further on public text alone. No private text was read, and nothing is claimed."


@dataclass(frozen=True)
class Pretrained:
    """A base model after pretraining.

    Attributes:
        backbone: the model.
        config: how other processes load it.
        text: digest of the public text.
        figures: loss on held-out public text before and after, in nats for each token.
    """

    backbone: Backbone
    config: ModelConfig
    text: str
    figures: dict[str, float]


def pretrained_base(
    run: Run[Any],
    base: Backbone,
    config: PretrainConfig,
    told: Told,
    documents: Sequence[str] | None = None,
    written: Told = nobody,
) -> Pretrained:
    """Train the base model on public text, or find that done, here or in a run beside this one; and hold the run to it.

    Args:
        run: the run, held to its base.
        base: the model that the recipe names.
        config: the block of the recipe.
        told: told how many steps are done.
        documents: public; by default the texts of the block, or those that the base writes behind its prompts.
        written: told how many of these are written.

    Raises:
        ConfigError: the text cannot be read, or it or the model has changed since the run began.
    """
    texts: list[PublicText]
    if documents is None:
        texts = [*own_texts(run, base, config, written)] if config.prompts else [*texts_of(config)]
    else:
        texts = [*documents]
    text = digest_json(texts)
    run.bind(pretraining_text=text)
    folder = _folder(run.root, base.digest, config, text)
    kept = folder.with_suffix(".json")
    if not folder.is_dir() and _shared(folder, run, base):
        run.log(PRETRAINING, FOUND)
    if not folder.is_dir():
        model, figures = pretrained(base, texts, config, HELD_ROWS, told)
        write_json(kept, figures)
        save_model(model, base.tokenizer, folder, run.recipe.release_id, HOW)
        del model
        trim_memory(collect=True)  # 20 bytes for each weight, which the driver would keep to the end of the run
    loaded = ModelConfig(base=str(folder), dtype=run.recipe.model.dtype)
    backbone = load_backbone(loaded)
    run.bind(pretrained_model=backbone.digest)
    return Pretrained(backbone, loaded, text, read_json(kept))


def on_its_base(root: Path, recipe: R) -> R:
    """The recipe of a finished run, with the model that it pretrained as its base model and nothing to pretrain.

    For what looks at the run afterwards: the public model that it stood on, and models trained like its own.

    Args:
        root: the run directory.
        recipe: its recipe; one without pretraining is returned as it is.
    """
    if not isinstance(recipe, PretrainedRecipe) or recipe.pretrain is None:
        return recipe
    inputs = read_json(root / "public" / INPUTS)
    folder = _folder(root.absolute(), inputs["base_model"], recipe.pretrain, inputs["pretraining_text"])
    model = ModelConfig(base=str(folder), dtype=recipe.model.dtype)
    return recipe.model_copy(update={"model": model, "pretrain": None})


def _shared(folder: Path, run: Run[Any], base: Backbone) -> bool:
    """Link the model of a run beside this one, if one of the same owner has it; the folder appears whole."""
    for other in sorted(run.root.parent.glob(f"*/public/{folder.name}")):
        scratch = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            if other.stat().st_uid != os.getuid():
                continue
            write_json(folder.with_suffix(".json"), read_json(other.with_suffix(".json")))
            shutil.copytree(other, scratch, copy_function=os.link)
        except (OSError, ValueError, shutil.Error):
            continue  # it was deleted meanwhile, or lies on another disk
        write_card(scratch, run.recipe.release_id, HOW, base.model)
        scratch.rename(folder)
        return True
    return False


def _folder(root: Path, base: str, config: PretrainConfig, text: str) -> Path:
    of_text = {"source", "text", "prompts", "texts", *OF_OWN_TEXTS}
    settings = config.model_dump(mode="json", exclude=of_text)
    return root / "public" / f"pretrained-{digest_json([base, settings, text])[:16]}"
