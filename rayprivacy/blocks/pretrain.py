"""Pretraining: the base model is trained on public text, once, before private text is read.

    public text, or what the base writes behind public prompts -> the base model, trained further       (public)

The model is kept in the public folder of the run, under a digest of the base, the settings and the text, as a folder
that every process of the run loads in place of `model.base`. A run beside this one that has a model under the same
digest shares it: the trials of a search, say, are trained from one. Its files are linked, so that it takes no more
space, and outlives the other run.

Texts that the base writes for itself teach it their form. Neither temperature nor a filter changes its probabilities:
of texts that were filtered the model grows too sure, and is a worse one of real text (benchmarks/results/README.md).
They are kept as token ids: one that still went on when it had its tokens must not teach the model to end there. Runs
beside each other share these, too.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayprivacy.blocks.pretrain_plan import (
    HELD_ROWS,
    OWN_TEXTS,
    PRETRAINING,
    PRETRAINING_STEPS,
    PretrainedRecipe,
    pretrained_folder,
    texts_of,
)
from rayprivacy.core import files, private
from rayprivacy.core.console import Told, nobody
from rayprivacy.corpus.public import first_sentences, load_prompts
from rayprivacy.generation import decode, fast, settings
from rayprivacy.models import quiet, save
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.pretraining import PublicText, pretrained
from rayprivacy.models.settings import ModelConfig, PretrainConfig
from rayprivacy.runs.context import Pretrained, RunContext
from rayprivacy.runs.directory import FOUND, Run

HOW = "A public base model, trained further on public text alone. No private text was read, and nothing is claimed."


def load_model(context: RunContext[Any], documents: Sequence[str] | None = None, **public_inputs: str) -> Backbone:
    """Load the model that the run stands on: the base, trained first where the recipe has a `pretrain` block.

    It is trained on `documents`, where that is not the public text as it stands in its source. The run is held to all
    of this, and to other public inputs, digests by name.

    Raises:
        ConfigError: there is no such model or text, or an input has changed since the run began.
    """
    base, recipe = context.load_model(**public_inputs), context.recipe
    if not isinstance(recipe, PretrainedRecipe) or recipe.pretrain is None:
        return base
    steps, texts = context.counter(PRETRAINING_STEPS), context.counter(OWN_TEXTS)
    with context.stage(PRETRAINING):
        context.pretrained = pretrained_base(context.run, base, recipe.pretrain, steps, documents, texts)
    return context.pretrained.backbone


def pretrained_base(
    run: Run[Any],
    base: Backbone,
    config: PretrainConfig,
    progress: Told,
    documents: Sequence[str] | None = None,
    writing: Told = nobody,
) -> Pretrained:
    """Train the base model on public text, or find that done, here or in a run beside this one; and hold the run to it.

    Documents are by default the texts of the block, or those that the base writes behind its prompts.
    """
    texts: Sequence[PublicText] = documents or ()
    if documents is None:
        texts = own_texts(run, base, config, writing) if config.prompts else texts_of(config)
    text = private.digest_json(texts)
    run.bind(pretraining_text=text)
    folder = pretrained_folder(run.root, base.digest, config, text)
    kept = folder.with_suffix(".json")
    if not folder.is_dir() and _shared(folder, run, base):
        run.log(PRETRAINING, FOUND)
    if not folder.is_dir():
        model, figures = pretrained(base, texts, config, HELD_ROWS, progress)
        files.write_json(kept, figures)
        save.save_model(model, base.tokenizer, folder, run.recipe.release_id, HOW)
        del model
        quiet.trim_memory(collect=True)  # 20 bytes for each weight, which the driver would keep to the end of the run
    loaded = ModelConfig(base=str(folder), dtype=run.recipe.model.dtype)
    backbone = load_backbone(loaded)
    run.bind(pretrained_model=backbone.digest)
    return Pretrained(backbone, loaded, text, files.read_json(kept))


def _shared(folder: Path, run: Run[Any], base: Backbone) -> bool:
    """Link the model of a run beside this one, if one of the same owner has it; the folder appears whole."""
    for other in sorted(run.root.parent.glob(f"*/public/{folder.name}")):
        scratch = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            if other.stat().st_uid != os.getuid():
                continue
            files.write_json(folder.with_suffix(".json"), files.read_json(other.with_suffix(".json")))
            shutil.copytree(other, scratch, copy_function=os.link)
        except (OSError, ValueError, shutil.Error):
            continue  # it was deleted meanwhile, or lies on another disk
        save.write_card(scratch, run.recipe.release_id, HOW, base.model)
        scratch.rename(folder)
        return True
    return False


def own_texts(run: Run[Any], base: Backbone, config: PretrainConfig, progress: Told) -> list[list[int]]:
    """Write the texts of a block with prompts, or find them written, here or in a run beside this one.

    They are `config.texts` documents: `start, prompt, text`, and `end` where the model ended the text by itself, or the
    text has `config.sentences`.
    """
    prompts = load_prompts(config.prompts)
    # Without the engine: runs beside each other share texts, and so the pretrained model, whatever engines they have.
    origin = [base.digest, prompts, config.texts, config.tokens_written, config.sentences]
    path = run.public(f"own-documents-{private.digest_json(origin)[:16]}.json")
    if not path.exists():
        files.write_json(path, _beside(run, path.name) or _written(run, base, prompts, config, progress))
    return [list(map(int, document)) for document in files.read_json(path)]


def _beside(run: Run[Any], name: str) -> Any:
    """The texts of another run of the same owner, or None."""
    for other in sorted(run.root.parent.glob(f"*/public/{name}")):
        try:
            if other.stat().st_uid == os.getuid():
                return files.read_json(other)
        except (OSError, ValueError):
            continue  # it was deleted meanwhile
    return None


def _written(
    run: Run[Any], base: Backbone, prompts: list[str], config: PretrainConfig, progress: Told
) -> list[list[int]]:
    engine = run.recipe.generation.decided
    longest = max(len(prompt.split()) for prompt in prompts)
    sampling = settings.SamplingConfig(
        texts=config.texts,
        max_tokens=config.tokens_written,
        prompt_words=(longest, longest),
        top_k=base.vocabulary,
        top_p=1.0,
    )
    with fast.sampler_of(engine, base.model, base, run.public(""), progress) as sampler:
        documents = sampler(decode.cut_prompts(prompts, sampling), sampling)
    return [_first_sentences(base, document, config.sentences) for document in documents]


def _first_sentences(base: Backbone, document: list[int], count: int | None) -> list[int]:
    """The document up to the end of its first `count` sentences, where they end in it."""
    found = count and first_sentences(base.text(document), count)
    return base.document(found, len(document)) if found else document
