"""How a tagger reads a text: the tokens of its words, the intent on the first, and a label on one token of each word.

A run reads its corpus so, and a saved tagger whatever it is asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.units import Reading, Row, no_context
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.spelling import PLAIN
from rayprivacy.tagging import loss, model
from rayprivacy.tagging.settings import Tags


def reading_of(recipe: EdpSgdRecipe) -> Reading:
    """The reading of a recipe."""
    labels, tokens = recipe.corpus.labels, recipe.training.max_tokens
    return Reading(recipe.privacy.unit, labels, no_context, tokens, documents=tagged_rows(recipe))


def tagged_rows(recipe: EdpSgdRecipe) -> "TaggedRows":
    """How the rows of a recipe become documents."""
    return TaggedRows(recipe.model.tags, recipe.corpus.labels, recipe.training.max_tokens)


@dataclass(frozen=True)
class TaggedRows:
    """The documents of some rows, each from its row alone; goes to the workers."""

    tags: Tags  # the public lists
    columns: tuple[str, ...]  # of the intent and of the word labels
    max_tokens: int  # of a text; what is longer is cut

    def __call__(self, rows: Sequence[Row], backbone: Backbone, version: int) -> list[Document]:
        """One document for each row, in their order."""
        return [self._document(row, backbone) for row in rows]

    def _document(self, row: Row, backbone: Backbone) -> Document:
        intent, labels = (row[column] for column in self.columns)
        words = str(row["text"]).split()
        numbers = self.tags.words(labels, len(words))
        ids, of_words = self._read(words, backbone)
        on_tokens = [None if word is None else numbers[word] for word in of_words]
        tokens = [backbone.start, *ids, backbone.end]
        return Document(loss.packed(tokens, [self.tags.intent(intent), *on_tokens, None], len(self.tags.names)), 1)

    def by_word(
        self, rows: Sequence[Row], backbone: Backbone, said: Iterable[tuple[int, list[int]]]
    ) -> Iterator[tuple[int, list[int]]]:
        """What a tagger said of rows, with a label for each word: `O` for those that it did not read.

        A word is not read where a long text is cut, or if it has no token of its own: a tokenizer may drop it. `said`
        has the numbers of the intent and of the labels of the words that were read (`tagging.loss.predicted`).
        """
        for row, (intent, labels) in zip(rows, said, strict=True):
            words = str(row["text"]).split()
            read = [word for word in self._read(words, backbone)[1] if word is not None]
            found = dict(zip(read, labels, strict=True))
            yield intent, [found.get(word, self.tags.outside) for word in range(len(words))]

    def _read(self, words: list[str], backbone: Backbone) -> tuple[list[int], list[int | None]]:
        """Token ids of some words, and for each the word whose label it carries, if any."""
        ids, of_words = _tokens(backbone.tokenizer, words, self.max_tokens)
        return ids, _once(of_words, model.is_causal(backbone.model))


def _tokens(tokenizer: Any, words: list[str], most: int) -> tuple[list[int], list[int | None]]:
    """Token ids of some words with blanks between, and for each the word that it ends in, or None for a blank."""
    found = tokenizer(" ".join(words), return_offsets_mapping=True, **PLAIN)
    word_at = [at if place < len(word) else None for at, word in enumerate(words) for place in range(len(word) + 1)]
    return found["input_ids"][:most], [word_at[end - 1] for _, end in found["offset_mapping"][:most]]


def _once(of_words: list[int | None], at_last: bool) -> list[int | None]:
    """The same with each word at its last token alone, or at its first."""
    if at_last:
        return _once(of_words[::-1], at_last=False)[::-1]
    first = {word: at for at, word in reversed(list(enumerate(of_words)))}
    return [word if first[word] == at else None for at, word in enumerate(of_words)]


@dataclass(frozen=True)
class Tagger:
    """Says the intent of a text and a label for each of its words, with the CRF where the model has one.

        from rayprivacy import Tagger
        intent, labels = Tagger.load("runs/mine/model")("play something by the beatles")

    Attributes:
        backbone: model and tokenizer.
        tags: what it can say.
    """

    backbone: Backbone
    tags: Tags

    @staticmethod
    def load(folder: str | Path) -> "Tagger":
        """Load the folder `model` of a run.

        Raises:
            ConfigError: it holds no tagger.
        """
        config = model.saved_tagger(Path(folder))
        return Tagger(model.load_tagger(config), config.tags)

    def __call__(self, text: str) -> tuple[str, list[str]]:
        """The intent, and a label for each word, words being what stands between blanks; `O` for what was not read.

        Not read are words behind the cut of a long text, and those of which the tokenizer makes nothing.
        """
        rows = TaggedRows(self.tags, ("intent", "slots"), model.most_tokens(self.backbone.model))
        asked = [{"text": text, "intent": None, "slots": None}]
        said = loss.predicted(self.backbone.model, self.tags, rows(asked, self.backbone, 0))
        ((intent, labels),) = rows.by_word(asked, self.backbone, said)
        return self.tags.all_intents[intent], [self.tags.names[label] for label in labels]
