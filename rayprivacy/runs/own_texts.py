"""Texts that the public base model writes behind public prompts, for it to be pretrained on: they teach it their form.

    public prompts -> the base model, by its own probabilities -> texts, kept in the public folder of the run

Neither temperature nor a filter changes the probabilities: of texts that were filtered the model grows too sure, and is
a worse one of real text (benchmarks/results/README.md). Texts are kept as token ids: one that still went on when it had
its tokens must not teach the model to end there. A run beside this one that has the same texts shares them.
"""

import os
from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.counting import Told
from rayprivacy.core.files import read_json, write_json
from rayprivacy.corpus.prompts import load_prompts
from rayprivacy.corpus.sentences import first_sentences
from rayprivacy.generation.decode import cut_prompts
from rayprivacy.generation.fast import sampler_of
from rayprivacy.generation.settings import SamplingConfig, settled
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import PretrainConfig
from rayprivacy.runs.directory import Run


def own_texts(run: Run[Any], base: Backbone, config: PretrainConfig, told: Told) -> list[list[int]]:
    """Write the texts, or find them written, here or in a run beside this one.

    Args:
        run: the run; the engine of its generation writes.
        base: the public model.
        config: the `pretrain` block, with prompts.
        told: told how many texts are written.

    Returns:
        `config.texts` documents, `start, prompt, text`, and `end` where the model ended the text by itself, or the text
        has `config.sentences`.

    Raises:
        ConfigError: the prompts cannot be read.
    """
    prompts = load_prompts(config.prompts)
    # Without the engine: runs beside each other share texts, and so the pretrained model, whatever engines they have.
    origin = [base.digest, prompts, config.texts, config.tokens_written, config.seed, config.sentences]
    path = run.public(f"own-documents-{digest_json(origin)[:16]}.json")
    if not path.exists():
        write_json(path, _beside(run, path.name) or _written(run, base, prompts, config, told))
    return [list(map(int, document)) for document in read_json(path)]


def _beside(run: Run[Any], name: str) -> Any:
    """The texts of another run of the same owner, or None."""
    for other in sorted(run.root.parent.glob(f"*/public/{name}")):
        try:
            if other.stat().st_uid == os.getuid():
                return read_json(other)
        except (OSError, ValueError):
            continue  # it was deleted meanwhile
    return None


def _written(run: Run[Any], base: Backbone, prompts: list[str], config: PretrainConfig, told: Told) -> list[list[int]]:
    engine = settled(run.recipe.generation.engine)
    longest = max(len(prompt.split()) for prompt in prompts)
    sampling = SamplingConfig(
        texts=config.texts,
        max_tokens=config.tokens_written,
        prompt_words=(longest, longest),
        top_k=len(base.head),
        top_p=1.0,
        seed=config.seed,
    )
    with sampler_of(engine, base.model, base, run.public(""), told) as sampler:
        documents = sampler(cut_prompts(prompts, sampling), sampling)
    return [_first_sentences(base, document, config.sentences) for document in documents]


def _first_sentences(base: Backbone, document: list[int], count: int | None) -> list[int]:
    """The document up to the end of so many sentences, where they end in it."""
    found = count and first_sentences(base.text(document), count)
    return base.document(found, len(document)) if found else document
