"""Reads utterances into trees with a parser, one record at a time: the tree of a record depends on nothing else.

    utterance -> its first tokens -> the most likely tree, freely: follows the grammar? -> the tree       (fast engine)
                          -> from its first token against the grammar on, the most likely one under masks
                                                                              complete? -> the tree
                                                                              otherwise -> UNREAD

What follows the grammar by itself is what masks would leave as well, up to the engine's rounding. So the slower engine,
which takes masks, has only to end what the fast one got wrong, and nothing to do for trees without an end.

On private text this has to be a function of the record alone, to the last bit, or else one user would change the trees
of others. So each utterance is a call of its own, without filling and without company; tokens are the most likely ones,
and not drawn; both lengths have fixed public bounds. Whatever goes wrong in a record ends in the same public constant
as a tree that is not complete in time: no exception leaves, and no count.
"""

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from rayprivacy.corpus.grammar import Grammar
from rayprivacy.corpus.structures import names
from rayprivacy.generation.ctranslate2_decoder import CTranslate2Decoder
from rayprivacy.generation.decode import greedy
from rayprivacy.generation.grammars import Matcher, following, masks_behind, matcher_of
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.parser import asked

UNREAD = ""  # as in a row without a tree


@dataclass(frozen=True)
class Parser:
    """A parser with its bounds.

    Attributes:
        backbone: a model that `models.parser` made.
        text_tokens: of an utterance that are read, at most.
        tree_tokens: of a tree, at most.
        grammar: public rules that trees follow; None takes whatever is a tree.
        fast: the same model as `generation.fast.convert` leaves it, asked first; None asks the model alone.
    """

    backbone: Backbone = field(repr=False)
    text_tokens: int
    tree_tokens: int
    grammar: Grammar | None = None
    fast: Path | None = None

    def __call__(self, utterance: str) -> str:
        """The tree of a private utterance, or `UNREAD`; never an exception."""
        try:
            return self.read(utterance)
        except Exception:  # noqa: BLE001 - a failure would show, and quote, the record that it is of
            return UNREAD

    def read(self, utterance: str) -> str:
        """The tree of an utterance, or `UNREAD`; failures of the model or of the machine are raised."""
        prompt = asked(utterance, self.backbone, self.text_tokens)
        if self._decoder is None:
            return self._masked(prompt, [])
        document = self._decoder.most_likely(prompt, self.tree_tokens)
        tree = self.backbone.text_after(prompt, document)
        if self._accepts(tree):
            return tree
        if self._matcher is None:
            return self._masked(prompt, [])
        written = document[len(self.backbone.prefix(prompt)) :]
        begun = following(self._matcher, written, self._vocabulary)
        return self._masked(prompt, begun) if len(begun) < len(written) else UNREAD  # masks would have left all of it

    def _masked(self, prompt: str, begun: list[int]) -> str:
        """The tree that begins with some tokens and goes on by the most likely ones that masks leave, or `UNREAD`."""
        masks = partial(masks_behind, self._matcher, begun, self._vocabulary) if self._matcher else None
        (ids,) = greedy(self.backbone.model, self.backbone, [prompt], self.tree_tokens, masks, begun)
        tree = self.backbone.text_after(prompt, ids)
        return tree if self._accepts(tree) else UNREAD

    @property
    def _vocabulary(self) -> int:
        return int(self.backbone.model.config.vocab_size)

    def _accepts(self, tree: str) -> bool:
        return self._matcher.accepts(tree) if self._matcher else names(tree) is not None

    @cached_property
    def _decoder(self) -> CTranslate2Decoder | None:
        return CTranslate2Decoder(self.fast, self.backbone) if self.fast else None

    @cached_property
    def _matcher(self) -> Matcher | None:
        if self.grammar is None:
            return None
        return matcher_of(self.grammar, self.backbone, self._vocabulary)
