"""A saved tagger that is asked: what a run released, read as the run read its corpus."""

from dataclasses import dataclass
from pathlib import Path

from rayprivacy.methods.edp_sgd.reading import TaggedRows
from rayprivacy.models.backbone import Backbone
from rayprivacy.tagging.loss import predicted
from rayprivacy.tagging.model import load_tagger, most_tokens, saved_tagger
from rayprivacy.tagging.settings import Tags


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
        config = saved_tagger(Path(folder))
        return Tagger(load_tagger(config), config.tags)

    def __call__(self, text: str) -> tuple[str, list[str]]:
        """The intent, and a label for each word, words being what stands between blanks; `O` for what was not read.

        Not read are words behind the cut of a long text, and those of which the tokenizer makes nothing.

        Args:
            text: a request.
        """
        rows = TaggedRows(self.tags, ("intent", "slots"), most_tokens(self.backbone.model))
        asked = [{"text": text, "intent": None, "slots": None}]
        said = predicted(self.backbone.model, self.tags, rows(asked, self.backbone, 0))
        ((intent, labels),) = rows.by_word(asked, self.backbone, said)
        return self.tags.all_intents[intent], [self.tags.names[label] for label in labels]
