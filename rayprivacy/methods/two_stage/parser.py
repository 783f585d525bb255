"""A semantic parser: a language model that learns from annotated public pairs, and reads private records one at a time.

    utterance -> its first tokens -> the most likely tree under the masks of the grammar: complete? -> the tree
                                                                                       otherwise -> UNREAD

On private text this has to be a function of the record alone, to the last bit, or else one user would change the trees
of others. So each utterance is a call of its own, without filling and without company; tokens are the most likely ones,
and not drawn; both lengths have fixed public bounds. Whatever goes wrong in a record ends in the same public constant
as a tree that is not complete in time: no exception leaves, and no count.

It learns trees behind the verb "parse", as `models.asked` has it, from pairs that are public.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rayprivacy.core import console, private
from rayprivacy.generation.decode import greedy
from rayprivacy.models.asked import Fitted, Learning, Pair, asked, fitted, kept
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig, ParserConfig
from rayprivacy.structures.grammar import Grammar
from rayprivacy.structures.masks import Matcher, matcher_of
from rayprivacy.structures.trees import names

ADAPTER = AdapterConfig(rank=16)  # LoRA in all layers
VERB = "parse"


def kept_parser(
    backbone: Backbone,
    pairs: Sequence[Pair],
    config: ParserConfig,
    tree_tokens: int,
    progress: console.Told,
    parent: Path,
    release: str,
    how: str,
) -> Path:
    """The folder of a parser, as `asked.kept` has it, in this folder."""
    settings = config.model_dump(mode="json", exclude={"source", "text"})
    name = private.digest_json([backbone.digest, settings, tree_tokens, list(pairs)])

    def fit() -> Fitted:
        return fitted_parser(backbone, pairs, config, tree_tokens, progress)

    return kept(parent / f"parser-{name[:16]}", backbone.tokenizer, fit, release, how)


def fitted_parser(
    backbone: Backbone, pairs: Sequence[Pair], config: ParserConfig, tree_tokens: int, progress: console.Told
) -> Fitted:
    """A parser of utterances and their trees, of at most `tree_tokens`."""
    learning = Learning("parser", config.steps, config.batch, config.learning_rate, ADAPTER, tree_tokens)
    prompted = [(asked(VERB, utterance, backbone, config.max_tokens), tree) for utterance, tree in pairs]
    return fitted(backbone, prompted, learning, progress)


UNREAD = ""  # as in a row without a tree


@dataclass(frozen=True)
class Parser:
    """A parser with its bounds.

    Of an utterance at most `text_tokens` are read, and of a tree `tree_tokens` written. Without the public rules of a
    grammar, whatever is a tree is taken.
    """

    backbone: Backbone = field(repr=False)
    text_tokens: int
    tree_tokens: int
    grammar: Grammar | None = None

    def __call__(self, utterance: str) -> str:
        """The tree of a private utterance, or `UNREAD`; never an exception."""
        try:
            return self.read(utterance)
        except Exception:  # noqa: BLE001 - a failure would show, and quote, the record that it is of
            return UNREAD

    def read(self, utterance: str) -> str:
        """The tree of an utterance, or `UNREAD`; failures of the model or of the machine are raised."""
        prompt = asked(VERB, utterance, self.backbone, self.text_tokens)
        masks = self._matcher.masks if self._matcher else None
        (ids,) = greedy(self.backbone.model, self.backbone, [prompt], self.tree_tokens, masks)
        tree = self.backbone.text_after(prompt, ids)
        accepted = self._matcher.accepts(tree) if self._matcher else names(tree) is not None
        return tree if accepted else UNREAD

    @cached_property
    def _matcher(self) -> Matcher | None:
        if self.grammar is None:
            return None
        return matcher_of(self.grammar, self.backbone, int(self.backbone.model.config.vocab_size))
