"""Reads utterances into trees with a parser, one record at a time: the tree of a record depends on nothing else.

    utterance -> its first tokens -> the most likely tree under the masks of the grammar: complete? -> the tree
                                                                                       otherwise -> UNREAD

On private text this has to be a function of the record alone, to the last bit, or else one user would change the trees
of others. So each utterance is a call of its own, without filling and without company; tokens are the most likely ones,
and not drawn; both lengths have fixed public bounds. Whatever goes wrong in a record ends in the same public constant
as a tree that is not complete in time: no exception leaves, and no count.
"""

from dataclasses import dataclass, field
from functools import cached_property

from rayprivacy.corpus.grammar import Grammar
from rayprivacy.corpus.structures import names
from rayprivacy.generation.decode import greedy
from rayprivacy.generation.grammars import Matcher, matcher_of
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
        prompt = asked(utterance, self.backbone, self.text_tokens)
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
