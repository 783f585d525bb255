"""Writers of a block of texts: an engine continues the prompts, and a rule says which texts are dropped.

An engine is a function of the model, the prompts and the settings, so that a block that is sampled again is the same.
The rules look at the released model's texts, one at a time, and at public rules: they are post-processing, and no
private text is read. Texts without a structure are dropped where they are no texts (`is_degenerate`), or go on with the
structure of their prompt (`holds_structure`). Texts that follow a public grammar are sampled freely, taken if they
follow it, and sampled under its masks (`structures.masks`) if not:

    prompts -> the model, freely -> follows the grammar? -- yes -> kept: exactly the model's own distribution
                  ^                      | no, a few times         given that the grammar is followed
                  +----------------------+
                                         | still no
                                         v
               the model, under masks that leave the tokens with which the grammar can go on -> complete? -> kept

Masks decide token by token, and so change the distribution; free draws do not. But a long text follows the grammar
less often than a short one, so that kept free draws are shorter than what the model writes: without free draws, all
texts are sampled under masks. Both kinds are counted. A text that reaches its bound of tokens before it is complete is
drawn again, a few times, and then left out. Without a grammar every text is kept, and those that are parse trees, or
JSON, are counted as accepted.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig

from rayprivacy.core.private import digest_bytes
from rayprivacy.generation.decode import Sampler, sample
from rayprivacy.generation.onnx import OnnxDecoder
from rayprivacy.generation.settings import ONNX, EngineName, SamplingConfig
from rayprivacy.models.backbone import Backbone, Documents, load_backbone, load_documents
from rayprivacy.models.settings import ModelConfig
from rayprivacy.structures.grammar import Grammar
from rayprivacy.structures.masks import Matcher, matcher_of
from rayprivacy.structures.trees import names

LONGEST_RUN = 7
FEWEST_GRAMS = 16
LEAST_DISTINCT = 0.5
MASKED_DRAWS = 4
INCOMPLETE, STRUCTURE = "incomplete", "structure"
FREE, ACCEPTED, MASKED, LEFT_OUT = "free_draws", "free_draws_accepted", "masked_draws", "left_out"
_GRAM = 4
_LETTER = re.compile(r"[^\W\d_]")
_STUCK = re.compile(r"(\w.{0,7}?)\1{19}")  # the whole text, in scripts that put no spaces between words
_SHORTEST_STUCK = 20
_OPENED = re.compile(r"[(\[{]\s*\"?([^\s()\[\]{}\"]+)")  # what follows an opening bracket

Continue = Callable[[list[str], SamplingConfig], list[str]]


def is_degenerate(text: str) -> str | None:
    """Why a text is no text, by public constants, or None if it is one: a model of much noise gets stuck now and then.

    - `empty`: not a single word;
    - `no letters`: digits, punctuation or symbols alone;
    - `loop`: a word 8 times in a row, or inside one word up to 8 characters 20 times in a row;
    - `repeats`: of at least 16 runs of four words (4-grams), fewer than half are distinct.

    Words are what stands between spaces, in lower case. Stretched words ("soooo") and "ha ha ha" are how people write,
    and pass.

    >>> is_degenerate("no no no, I mean it")
    >>> is_degenerate("so " * 8)
    'loop'
    """
    words = text.lower().split()
    if not words:
        return "empty"
    if not _LETTER.search(text):
        return "no letters"
    longest = max(sum(1 for _ in run) for _, run in groupby(words))
    if longest > LONGEST_RUN or any(len(word) >= _SHORTEST_STUCK and _STUCK.search(word) for word in words):
        return "loop"
    grams = list(zip(*(words[at:] for at in range(_GRAM)), strict=False))
    return "repeats" if len(grams) >= FEWEST_GRAMS and len(set(grams)) < LEAST_DISTINCT * len(grams) else None


def holds_structure(text: str, names: Collection[str]) -> bool:
    """Whether a text has one of some names behind an opening bracket, as structures have and sentences do not.

    >>> holds_structure("No thank you (Yield (Execute", {"Yield"}), holds_structure("Yes (tomorrow)", {"Yield"})
    (True, False)
    """
    return bool(names) and any(found in names for found in _OPENED.findall(text))


@dataclass(frozen=True)
class Structure:
    """What is asked of texts; public, and goes to the workers."""

    grammar: Grammar | None  # None keeps every text
    free_draws: int = 1
    constrained: bool = True  # whether texts that do not follow the grammar are drawn under masks, or kept


@dataclass
class StructuredWriter:
    """Writes texts of a structure, and counts its draws by kind.

    `freely` is what comes after each prompt, by any engine; `under_masks` the same under a grammar's masks, and loads
    what it needs when it is first called. The model scores `vocabulary` tokens.
    """

    structure: Structure
    documents: Documents
    vocabulary: int
    freely: Continue
    under_masks: Callable[[Matcher], Continue]
    counts: Counter[str] = field(default_factory=Counter)

    @cached_property
    def _matcher(self) -> Matcher | None:
        grammar = self.structure.grammar
        return matcher_of(grammar, self.documents, self.vocabulary) if grammar else None

    def __call__(self, prompts: list[str], config: SamplingConfig) -> list[tuple[str, str | None]]:
        """A text for each prompt, and why it is left out, or None."""
        texts, free = [""] * len(prompts), self.structure.free_draws
        open_places = list(range(len(prompts)))
        for draw in range(free):
            drawn = len(open_places)
            open_places = self._drawn(self.freely, prompts, texts, open_places, _again(config, draw), FREE)
            self.counts[ACCEPTED] += drawn - len(open_places)
        if not self.structure.constrained:
            return [(text, None) for text in texts]
        if open_places and self._matcher is not None:
            masked = self.under_masks(self._matcher)
            for draw in range(MASKED_DRAWS):
                open_places = self._drawn(masked, prompts, texts, open_places, _again(config, free + draw), MASKED)
        self.counts[LEFT_OUT] += len(open_places)
        return [(text, INCOMPLETE if place in open_places else None) for place, text in enumerate(texts)]

    def _drawn(
        self, draw: Continue, prompts: list[str], texts: list[str], places: list[int], config: SamplingConfig, kind: str
    ) -> list[int]:
        if not places:
            return []
        self.counts[kind] += len(places)
        for place, text in zip(places, draw([prompts[place] for place in places], config), strict=True):
            texts[place] = text
        accepts = self._matcher.accepts if self._matcher else lambda text: names(text) is not None
        return [place for place in places if not accepts(texts[place])]


def _again(config: SamplingConfig, draw: int) -> SamplingConfig:
    """The settings of one more draw, with a seed of its own; the first draw has that of its block."""
    seed = int(digest_bytes(f"draw {config.seed} {draw}".encode())[:8], 16) if draw else config.seed
    return config.model_copy(update={"seed": seed})


@dataclass(frozen=True)
class WritingTask:
    """How texts are written, as every actor is told it."""

    model_dir: Path  # as `save_model` leaves it
    config: SamplingConfig
    engine: EngineName
    threads: int  # of an actor
    ready: Path  # the folder that the engine reads: `model_dir`, or what the engine made of it
    begun: bool = False  # whether each text begins with the last line of its prompt
    structure: Structure | None = None  # what is asked of the texts in place of not being degenerate
    names: frozenset[str] = frozenset()  # of a structure that the prompts are written in
    whole: str = ""  # what stands in texts, a mark say, and is left out where a text ends inside of it

    @property
    def identity(self) -> list[Any]:
        """What decides a text beside the model and the prompt, as JSON values."""
        how = [self.config.model_dump(mode="json"), self.engine, self.threads, self.begun, repr(self.structure)]
        return [*how, *sorted(self.names), *([["whole", self.whole]] if self.whole else [])]

    def at(self, block: int) -> SamplingConfig:
        """The settings of one block. A sampler uses 32 bits of a seed, in which no two blocks of a run agree."""
        first = int(digest_bytes(f"writing {self.config.seed}".encode())[:8], 16)
        return self.config.model_copy(update={"seed": (first + block) % 2**32})


@dataclass
class UnstructuredWriter:
    """Texts as the model writes them; degenerate ones are dropped, and those that hold names of a structure."""

    freely: Continue
    names: frozenset[str]
    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, prompts: list[str], config: SamplingConfig) -> list[tuple[str, str | None]]:
        """The texts, each with the reason to drop it, or none."""
        return [
            (text, is_degenerate(text) or (STRUCTURE if holds_structure(text, self.names) else None))
            for text in self.freely(prompts, config)
        ]


def writer_of(task: WritingTask) -> StructuredWriter | UnstructuredWriter:
    """What writes the texts of the task's blocks."""
    if task.engine == ONNX:
        documents = load_documents(task.model_dir)
        freely = _texts(documents, OnnxDecoder(task.ready, documents, task.threads).sample, task)
    else:
        freely = _by_transformers(task)
    if task.structure is None:
        return UnstructuredWriter(freely, task.names)
    vocabulary = int(AutoConfig.from_pretrained(task.model_dir, trust_remote_code=False).vocab_size)
    return StructuredWriter(
        task.structure, load_documents(task.model_dir), vocabulary, freely, partial(_by_transformers, task)
    )


def _by_transformers(task: WritingTask, matcher: Matcher | None = None) -> Continue:
    backbone = _loaded(task.model_dir)
    masks = matcher.masks if matcher else None
    return _texts(backbone, partial(sample, backbone.model, backbone, masks=masks), task)


def _texts(documents: Documents, sampler: Sampler, task: WritingTask) -> Continue:
    """What a sampler writes after each prompt, as text; with its last line if the text has begun with it."""

    def continued(prompts: list[str], config: SamplingConfig) -> list[str]:
        written = zip(prompts, sampler(prompts, config), strict=True)
        texts = (
            without_lines(prompt, documents.text(ids)) if task.begun else documents.text_after(prompt, ids)
            for prompt, ids in written
        )
        return [without_part(text, task.whole) for text in texts]

    return continued


def without_lines(prompt: str, text: str) -> str:
    """A text that begins with a prompt, without all lines of the prompt but the last.

    >>> without_lines("topic: soup\\nI like", "topic: soup\\nI like it.\\nYes")
    'I like it.\\nYes'
    """
    lines = prompt.count("\n")
    return text.split("\n", lines)[-1].strip()


def without_part(text: str, whole: str) -> str:
    """A text without the beginning of something that its last words are; a single character is not enough.

    >>> without_part("call me at <REDA", "<REDACTED>"), without_part("call <REDACTED>", "<REDACTED>")
    ('call me at', 'call <REDACTED>')
    """
    ends = (size for size in range(len(whole) - 1, 1, -1) if text.endswith(whole[:size]))
    return text[:-size].rstrip() if (size := next(ends, 0)) else text


@lru_cache(maxsize=1)  # an actor may sample from its model both freely and under masks
def _loaded(model_dir: Path) -> Backbone:
    return load_saved(model_dir)


def load_saved(model_dir: Path) -> Backbone:
    """A model as `save_model` left it, in the number format that it was saved in."""
    stored = AutoConfig.from_pretrained(model_dir, trust_remote_code=False).dtype
    dtype: Literal["bfloat16", "float32"] = "bfloat16" if stored == torch.bfloat16 else "float32"
    return load_backbone(ModelConfig(base=str(model_dir), dtype=dtype), released=True)
