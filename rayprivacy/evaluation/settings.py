"""What an evaluation compares and how: columns, embeddings, sample sizes and one public seed.

None of these may be chosen by looking at the private text; none of them changes what was released.
"""

from typing import ClassVar

from pydantic import Field

from rayprivacy.core.config import Config

LSA = "tfidf"
LEAST_COMPARED = 40


class EvaluationConfig(Config):
    """How two corpora are compared.

    Attributes:
        text: the column that holds the text, in every file.
        user: the column that names the author; if absent, the column `user` where there is one, else no author is known
            and each text counts as a user of its own.
        label: a column of labels, for the classifier; if absent, none is trained.
        embeddings: `tfidf`, or a base model as in `model.base`; figures of embeddings are averaged over them.
        neighbours: k of the nearest-neighbour figures.
        max_texts: at most so many texts of each file are compared, drawn by the seed.
        max_words: the bound on words that the generator had, to count the texts that reach it.
        seed: of every draw here.
    """

    named: ClassVar[str] = "evaluation"

    text: str = Field("text", min_length=1)
    user: str | None = Field(None, min_length=1)
    label: str | None = Field(None, min_length=1)
    embeddings: tuple[str, ...] = Field(("smollm2-135m", LSA), min_length=1)
    neighbours: int = Field(5, ge=1, le=100)
    max_texts: int = Field(5000, ge=LEAST_COMPARED)
    max_words: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)
