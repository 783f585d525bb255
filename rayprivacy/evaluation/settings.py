"""What an evaluation compares and how, none of it chosen by looking at private text, and the packages it needs."""

from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError

LSA, MINILM = "tfidf", "minilm-l6"
LEAST_COMPARED = 40
SCORED = 150  # texts whose perplexity under the base model is measured, at most
_PACKAGES = ("sklearn", "sacrebleu")
FigureName = Literal["perplexity", "lengths", "topics", "recall", "copied", "accuracy"]


class EvaluationConfig(Config):
    """How two corpora are compared.

    Attributes:
        text: the column that holds the text; in synthetic text that has none of this name it is `text`, as runs write.
        user: the column that names the author; if absent, the column `user` where there is one, else no author is known
            and each text counts as a user of its own.
        label: a column of labels, for the classifier; if absent, none is trained.
        tree: a column of parse trees, as s-expressions; in synthetic text that has none of this name it is `parse`, as
            two-stage generation writes it. If absent, no functions are compared.
        embeddings: `minilm-l6`, `tfidf`, or a base model as in `model.base`; figures are averaged over the embeddings.
        base: the base model whose perplexity of the texts is measured, as in `model.base`; with null none is.
        neighbours: k of the nearest-neighbour figures.
        max_texts: the most texts of a file that are compared, drawn by the seed.
        max_words: the bound on words of a synthetic text, to count the texts that reach it.
        seed: of every draw here.
    """

    named: ClassVar[str] = "evaluation"

    text: str = Field("text", min_length=1)
    user: str | None = Field(None, min_length=1)
    label: str | None = Field(None, min_length=1)
    tree: str | None = Field(None, min_length=1)
    embeddings: Annotated[tuple[str, ...], PathKind.PUBLIC_MODEL] = Field((MINILM, LSA), min_length=1)
    base: Annotated[str | None, PathKind.PUBLIC_MODEL] = Field("smollm2-135m", min_length=1)
    neighbours: int = Field(5, ge=1, le=100)
    max_texts: int = Field(5000, ge=LEAST_COMPARED)
    max_words: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)


class FiguresConfig(Config):
    """The `figures` block: an evaluation on all users that may be published, for a share of the budget.

    Attributes:
        share: of the budget, counted as squared sensitivity over noise: 0.05 leaves 97.5% of its noise to the rest.
        of: what is measured, as far as the method has it; noise is the smaller the fewer they are.
        topics: clusters of the synthetic text by meaning, by whose shares it is compared with private text.
    """

    share: float = Field(0.05, gt=0, le=0.5)
    of: tuple[FigureName, ...] = Field(
        ("perplexity", "lengths", "topics", "recall", "copied", "accuracy"), min_length=1
    )
    topics: int = Field(8, ge=2, le=100)


def require_extra(what: str) -> None:
    """Require the packages of the extra `eval`; errors name `what` needs them."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ConfigError(f"{what} needs {name}: pip install 'rayprivacy[eval]'.")
